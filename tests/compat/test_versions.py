"""The plugin and the server's flags against SGLang's source, in the versions CI looks at. `make compat` takes all."""

import re
import shutil
from pathlib import Path

import pytest
from tests.compat.check import check_symbol, command_of, interpreter, problems
from tests.compat.conftest import Sources
from tests.compat.symbols import IN_CI, SYMBOLS, VERSIONS, Symbol

from eagle3.errors import ConfigError
from eagle3.server import required
from eagle3.server.arguments import installed
from eagle3.server.flags import ServerCommand
from eagle3.server.patches import dump_versions

OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]


def test_the_versions_are_those_that_the_plugin_names():
    versions = dump_versions()
    assert (versions.oldest, versions.newest) == (OLDEST, NEWEST)
    loading = [version for version in VERSIONS if versions.loads_plugins(version)]
    assert loading[0] == versions.plugins_since == "0.5.11"
    assert all(versions.hold(version) for version in VERSIONS)


@pytest.mark.parametrize("version", IN_CI)
def test_the_plugin_fits(sources: Sources, version: str):
    assert problems(version, sources(version)) == []


def renamed(row: Symbol) -> list[str]:
    """The names that a row stands for; each is renamed in a copy of its file."""
    own = row.name.rsplit(".", 1)[-1:] if row.name else []
    return [*own, *row.parameters, *row.members, *row.uses]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_any_renamed_symbol_is_found_out(sources: Sources, version: str, tmp_path: Path):
    """Each name of each row, one at a time."""
    source = sources(version)
    tried = 0
    for row in SYMBOLS:
        if not row.holds_for(version):
            continue
        text = (source / row.file).read_text(encoding="utf-8")
        copy = tmp_path / row.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        for name in renamed(row):
            changed, count = re.subn(rf"(?<![\w.]){re.escape(name)}\b|(?<=\.){re.escape(name)}\b", "other_name", text)
            assert count > 0, (row, name)
            copy.write_text(changed, encoding="utf-8")
            found = check_symbol(row, tmp_path)
            assert found, f"{row.file}: {name} was renamed and nobody noticed"
            assert any(name in line for line in found), found
            tried += 1
    assert tried > 50


def test_a_renamed_flag_is_found_out(sources: Sources, tmp_path: Path):
    """0.5.9 has all of its flags in one file."""
    folder = shutil.copytree(sources(OLDEST).parent, tmp_path / "copy") / "sglang"
    (folder.parent / "python").unlink(missing_ok=True)  # that of the original
    arguments = folder / "srt" / "server_args.py"
    text = arguments.read_text(encoding="utf-8")
    arguments.write_text(text.replace("disable_radix_cache", "radix_cache_off").replace("radix-cache", "radices"))
    found = problems(OLDEST, folder)
    assert "ServerArgs has no field disable_radix_cache" in found
    assert any("no flag disable_radix_cache" in line for line in found)


def test_a_flag_that_would_break_a_dump_and_is_not_refused_is_found_out(sources: Sources, monkeypatch):
    monkeypatch.delitem(required.REFUSED, "decode_context_parallel_size")
    (found,) = problems(NEWEST, sources(NEWEST))
    assert "decode_context_parallel_size is not refused" in found


def given(command: ServerCommand) -> set[str]:
    """Bare flags and `--name value` of what a dump needs, as words."""
    words = " ".join(command.argv)
    wanted = r"--(?:disable|skip|enforce|enable)-\S+|--cuda-graph-backend-\w+ \w+"
    return set(re.findall(wanted, words))


EVERYWHERE = {"--skip-server-warmup", "--skip-tokenizer-init", "--disable-radix-cache"}
FUSION_OFF = "--enforce-disable-flashinfer-allreduce-fusion"
GRAPHS_OFF = {
    "0.5.9": {"--disable-cuda-graph"},
    "0.5.11": {"--disable-cuda-graph", "--disable-piecewise-cuda-graph", FUSION_OFF},
    "0.5.17": {"--cuda-graph-backend-decode disabled", "--cuda-graph-backend-prefill disabled", FUSION_OFF},
    "0.5.23": {"--cuda-graph-backend-decode disabled", "--cuda-graph-backend-prefill disabled", FUSION_OFF},
}


@pytest.mark.parametrize("version", IN_CI)
def test_a_dump_gets_what_it_needs_under_the_version_s_own_names(sources: Sources, version: str):
    command = command_of(sources(version), "cuda", "extraction")
    assert command.sglang_version == version
    assert given(command) == EVERYWHERE | GRAPHS_OFF[version]
    launcher = "eagle3_hs_dump.launch" if version == "0.5.9" else "sglang.launch_server"
    assert command.argv[1:3] == ("-m", launcher)
    assert required.ALLOW_UNTESTED not in command.added_env
    assert command_of(sources(version), "cuda", "serving").argv[2] == "sglang.launch_server"


@pytest.mark.parametrize("version", IN_CI)
def test_what_would_break_a_dump_is_refused_in_every_version_that_has_it(sources: Sources, version: str):
    folder = sources(version)
    names = [name for name in required.REFUSED if installed(str(interpreter(folder))).takes(name)]
    assert {"pp_size", "attn_cp_size", "enable_two_batch_overlap"} <= set(names)
    for name in names:
        value = 2 if name.endswith("_size") else True
        with pytest.raises(ConfigError, match=rf"server\.flags\.common\.{name}=.*cannot be dumped with"):
            command_of(folder, "cuda", "extraction", {name: value})
    command_of(folder, "cuda", "serving", {"enable_two_batch_overlap": True})


@pytest.fixture
def other_version(sources: Sources, tmp_path: Path):
    """The newest SGLang's source under another version number."""

    def make(version: str) -> Path:
        folder = shutil.copytree(sources(NEWEST).parent, tmp_path / version)
        (folder / "python").unlink(missing_ok=True)
        (metadata,) = folder.glob("*.dist-info/METADATA")
        metadata.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        return folder / "sglang"

    return make


@pytest.mark.parametrize("version", ["0.5.8.post1", "0.5.24", "0.6.0"])
def test_another_version_is_refused_for_a_dump_and_allowed_on_request(other_version, version: str):
    folder = other_version(version)
    with pytest.raises(ConfigError) as refusal:
        command_of(folder, "cuda", "extraction")
    for part in (version, f"{OLDEST} to {NEWEST}", "server.python", "server.allow_untested=true"):
        assert part in str(refusal.value)
    command = command_of(folder, "cuda", "extraction", allow_untested=True)
    assert command.added_env[required.ALLOW_UNTESTED] == "1"
    serving = command_of(folder, "cuda", "serving")
    assert required.ALLOW_UNTESTED not in serving.added_env
