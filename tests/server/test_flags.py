"""Configuration to command, against the SGLang that is installed. Nothing is started."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3.config.schema import Config, DatasetConfig, NcclConfig, NcclProfile, ServerConfig, ServerFlags, TargetConfig
from eagle3.errors import ConfigError, ServerError
from eagle3.server.arguments import installed
from eagle3.server.flags import HIDDEN, server_command
from eagle3.server.patches import PATCHES

WORK = Path("/data/work")
OURS = [
    "SGLANG_HS_DUMP_DIR",
    "SGLANG_CAPTURE_REPORT_DIR",
    "SGLANG_HS_DUMP_ALLOW_UNTESTED",
    "SGLANG_PLUGINS",
    "SGLANG_USE_CPU_ENGINE",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
    "HF_HUB_OFFLINE",
]


def config(
    device: str = "cpu", *, env: dict[str, str] | None = None, nccl: dict[str, str] | None = None, **flags
) -> Config:
    return Config(
        name="test",
        target=TargetConfig(name="t", path="some/model"),
        dataset=DatasetConfig(name="d", path="d.jsonl"),
        server=ServerConfig(device=device, flags=ServerFlags(**flags), env=env or {}),
        nccl=NcclConfig(extraction=NcclProfile("tuned", nccl or {})),
    )


def value(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_a_dump_gets_what_it_needs():
    command = server_command(config(), "extraction", "M", dump=WORK)
    for flag in ("--disable-radix-cache", "--skip-server-warmup", "--skip-tokenizer-init"):
        assert flag in command.argv
    assert value(command.argv, "--cuda-graph-backend-prefill") == "disabled"
    assert value(command.argv, "--model-path") == "M"
    assert command.added_env["SGLANG_HS_DUMP_DIR"] == str(WORK)
    assert command.added_env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"
    assert "hs_dump" in command.added_env["PYTHONPATH"]


def test_the_cpu_stand_in_is_there_on_a_cpu_only():
    assert "cpu_kernels" in server_command(config("cpu"), "serving", "M").added_env["PYTHONPATH"]
    gpu = server_command(config("cuda"), "serving", "M")
    assert "PYTHONPATH" not in gpu.added_env
    assert "--attention-backend" not in gpu.argv


def test_serving_keeps_its_cache_and_is_not_dumped():
    command = server_command(config(), "serving", "M")
    assert "--disable-radix-cache" not in command.argv
    assert "SGLANG_HS_DUMP_DIR" not in command.added_env


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("extraction", "disable_radix_cache", False),
        ("common", "cuda_graph_backend_prefill", "full"),
        ("common", "skip_server_warmup", False),
        ("extraction", "pp_size", 2),
        ("common", "enable_two_batch_overlap", True),
        ("common", "speculative_algorithm", "EAGLE3"),
        ("common", "model_path", "x"),
        ("extraction", "tp_size", 2),
        ("common", "mem-fraction-static", 0.5),
        ("common", "load_format", "dummy"),
        ("extraction", "load_format", "dummy"),
        ("common", "tokenizer_path", "another/model"),
        ("common", "revision", "main"),
        ("common", "chat_template", "t.jinja"),
        ("extraction", "json_model_override_args", {"num_hidden_layers": 2}),
    ],
)
def test_what_must_not_be_overridden_is_refused_by_its_key(group, name, value):
    with pytest.raises(ConfigError, match=rf"server\.flags\.{group}\.{name}"):
        server_command(config(**{group: {name: value}}), "extraction", "M", dump=WORK)


def test_an_unknown_flag_is_refused_with_what_is_close():
    with pytest.raises(ConfigError, match=r"server\.flags\.common\.mem_fraction_statik.*mem_fraction_static"):
        server_command(config(common={"mem_fraction_statik": 0.5}), "serving", "M")


@pytest.mark.parametrize("value", ["foo", "", True, [2], {"a": 1}])
def test_a_number_is_wanted_where_sglang_declares_one(value):
    for name in ("dp_size", "mem_fraction_static", "max_total_tokens"):
        with pytest.raises(ConfigError, match=rf"server\.flags\.common\.{name}=.*takes a number there"):
            server_command(config(common={name: value}), "serving", "M")


@pytest.mark.parametrize("value", [2, 0.5, "2", "1k", ".5", None, False])
def test_what_may_be_a_number_is_sglang_s_to_judge(value):
    server_command(config(common={"max_total_tokens": value}), "serving", "M")


def test_the_cpu_s_cache_is_bounded_in_tokens_and_other_programs_may_take_most_of_the_memory_meanwhile():
    argv = server_command(config(), "extraction", "M").argv
    assert int(value(argv, "--max-total-tokens")) >= 16384
    assert float(value(argv, "--mem-fraction-static")) >= 0.9  # SGLang gives up when that much is gone at its start


def test_values_become_words():
    flags = {
        "mem_fraction_static": 0.25,
        "trust_request_chat_template": True,
        "enable_metrics": False,
        "max_running_requests": None,
        "cuda_graph_bs_decode": [1, 2],
        "json_model_override_args": {"a": 1},
    }
    argv = server_command(config("cuda", serving=flags), "serving", "M").argv
    assert value(argv, "--mem-fraction-static") == "0.25"
    assert "--trust-request-chat-template" in argv
    assert "--enable-metrics" not in argv
    assert "--max-running-requests" not in argv
    at = argv.index("--cuda-graph-bs-decode")
    assert argv[at + 1 : at + 3] == ("1", "2")
    assert json.loads(value(argv, "--json-model-override-args")) == {"a": 1}


def test_a_user_s_value_wins_over_a_default_of_ours():
    command = server_command(config(common={"max_total_tokens": 99}), "serving", "M")
    assert command.argv.count("--max-total-tokens") == 1
    assert value(command.argv, "--max-total-tokens") == "99"


def test_nothing_secret_is_shown():
    cfg = config(
        "cuda", env={"HF_TOKEN": "hush", "OMP_NUM_THREADS": "2"}, common={"api_key": "quiet", "max_total_tokens": 77}
    )
    command = server_command(cfg, "serving", "M")
    assert command.added_env["HF_TOKEN"] == "hush"
    assert "quiet" in command.argv
    shown = command.shown()
    assert "hush" not in shown
    assert "quiet" not in shown
    assert shown.count(HIDDEN) == 2
    assert "OMP_NUM_THREADS=2" in shown
    assert "--max-total-tokens 77" in shown
    assert command.flags["api_key"] == HIDDEN


def test_a_profile_belongs_to_its_role():
    cfg = config("cuda", nccl={"NCCL_PROTO": "LL"})
    assert server_command(cfg, "extraction", "M", dump=WORK).added_env["NCCL_PROTO"] == "LL"
    assert "NCCL_PROTO" not in server_command(cfg, "serving", "M").added_env


@pytest.mark.parametrize(
    ("nccl", "env", "key"),
    [
        ({"PROTO": "LL"}, {}, r"nccl\.extraction\.env\.PROTO"),
        ({"NCCL_PROTO": ""}, {}, r"nccl\.extraction\.env\.NCCL_PROTO"),
        ({"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple"}, r"server\.env\.NCCL_PROTO"),
        *(({}, {name: "x"}, rf"server\.env\.{name}: is set by eagle3") for name in OURS),
    ],
)
def test_an_impossible_environment_is_refused_by_its_key(nccl, env, key):
    with pytest.raises(ConfigError, match=key):
        server_command(config("cuda", nccl=nccl, env=env), "extraction", "M", dump=WORK)


def test_the_port_can_be_chosen_later():
    command = server_command(config(), "serving", "M").at_port(4321)
    assert command.port == 4321
    assert value(command.argv, "--port") == "4321"


def test_inherited_paths_stay_behind_ours(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    path = server_command(config(), "serving", "M").environment()["PYTHONPATH"]
    assert path.endswith("cpu_kernels:/mine")


def test_ranks_of_a_cpu_server_find_each_other_without_nccl():
    cfg = config(env={"GLOO_SOCKET_IFNAME": "eth0"})
    cfg.server.tp = 3
    command = server_command(cfg, "extraction", "M", dump=WORK)
    assert command.added_env["SGLANG_CPU_OMP_THREADS_BIND"] == "all|all|all"
    assert command.added_env["SGLANG_NCCL_SO_PATH"] == "none"
    assert command.added_env["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "--disable-custom-all-reduce" in command.argv
    gpus = config("cuda")
    gpus.server.tp = 3
    for other in (config(), gpus):
        command = server_command(other, "extraction", "M", dump=WORK)
        assert not {"SGLANG_CPU_OMP_THREADS_BIND", "SGLANG_NCCL_SO_PATH"} & set(command.added_env)
        assert "--disable-custom-all-reduce" not in command.argv


def test_what_we_set_is_ours_alone():
    added = set(server_command(config(), "extraction", "M", dump=WORK).added_env) - {"PYTHONPATH"}
    assert {"OMP_WAIT_POLICY", "SGLANG_HS_DUMP_DIR"} <= added
    for name in added:
        with pytest.raises(ConfigError, match=rf"server\.env\.{name}: is set by eagle3"):
            server_command(config(env={name: "x"}), "extraction", "M", dump=WORK)


def test_an_inherited_choice_of_plugins_does_not_leave_ours_out(monkeypatch):
    ours = {
        line.partition("=")[0].strip()
        for file in PATCHES.glob("*/*.dist-info/entry_points.txt")
        for line in file.read_text().splitlines()
        if "=" in line
    }
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    assert "SGLANG_PLUGINS" not in server_command(config(), "extraction", "M", dump=WORK).environment()
    monkeypatch.setenv("SGLANG_PLUGINS", "mine")
    allowed = server_command(config(), "extraction", "M", dump=WORK).environment()["SGLANG_PLUGINS"].split(",")
    assert set(allowed) == {"mine"} | ours


def test_the_flags_are_those_of_sglang_itself():
    """What is read from the source against what the installed command line really takes."""
    code = (
        "import argparse; from sglang.srt.server_args import ServerArgs; p = argparse.ArgumentParser(); "
        "ServerArgs.add_cli_args(p); print('FLAGS', *(o for a in p._actions for o in a.option_strings)); "
        "print('OTHERS', *(o for a in p._actions for o in a.option_strings if a.type in (None, str)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)

    def printed(begin: str) -> set[str]:
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(begin)]
        return {word[2:].replace("-", "_") for word in line.split()[1:] if word.startswith("--")} - {"help"}

    real, found = printed("FLAGS"), installed(None).flags
    assert len(installed(None).numbers) > 50
    assert installed(None).numbers & printed("OTHERS") == set()
    assert real - found == set()
    assert len(found - real) < len(real) // 20, sorted(found - real)


def test_an_interpreter_without_sglang_is_named(tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\nexec " + sys.executable + ' -I -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    cfg = config()
    cfg.server.python = str(tmp_path / "python")
    with pytest.raises(ServerError, match=r"not installed for .*/python"):
        server_command(cfg, "serving", "M")


def test_a_plan_imports_neither_torch_nor_sglang():
    code = (
        "import sys; from tests.server.test_flags import config; from eagle3.server.flags import server_command; "
        "server_command(config(), 'serving', 'M').shown(); "
        "assert not {'torch', 'sglang'} & set(sys.modules), sorted(sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=120)
