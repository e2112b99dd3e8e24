"""A drafter's folder that was damaged, edited or written over: it stays a drafter, and is told as a damaged one."""

import json
import resource
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.speaking import spoken
from tests.drafter.foreign import BOUNDARIES, make_ours, rewrite
from tests.drafter.targets import make_target

from eagle3.cli import main
from eagle3.target.info import TargetInfo

IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture
def run(tmp_path: Path, target: TargetInfo) -> Path:
    """A finished run with a drafter."""
    run = tmp_path / "runs" / "mine" / "now"
    make_ours(run / "drafter", target)
    made = {"target": {"path": str(target.path), "name": "tiny", "source": "local"}}
    (run / "snapshot").mkdir()
    for folder in (run, run / "drafter"):
        (folder / "provenance.json").write_text(json.dumps(made))
    (run / "snapshot" / "replay.yaml").write_text("name: mine\n")
    (run / "config.yaml").write_text("until: report\nevaluate: {drafter: null}\nloss: {ttt_steps: 5}\n")
    (run / "DONE").touch()
    return run


def as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda file: file.write_text("{"), "config.json: not JSON"),
    (lambda file: file.write_text(""), "config.json: not JSON"),
    (lambda file: file.write_bytes(b"\x80\x00\xff"), "config.json: not JSON"),
    (lambda file: file.write_text("[1]"), "config.json: a list, expected an object"),
    (lambda file: file.write_text("{}"), "config.json: num_hidden_layers is missing"),
    (lambda file: file.unlink(), "config.json: is missing"),
    (as_folder, "config.json: can't be read"),
    (lambda file: file.write_text('{"eagle3": "x"}'), "config.json: num_hidden_layers is missing"),
]


@pytest.mark.parametrize(("damage", "problem"), DAMAGE)
@pytest.mark.parametrize("origin", [True, False], ids=["ours", "without a word of where it is from"])
def test_it_is_still_a_drafter(
    run: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], problem: str, origin: bool
) -> None:
    folder = run / "drafter"
    if not origin:
        (folder / "provenance.json").unlink()
    damage(folder / "config.json")
    for path in (folder, run):
        code, out, err = spoken(capsys, "verify", path, "--all")
        assert (code, err) == (1, ""), out
        assert f"{folder}: {problem}" in out
        assert len(set(out.splitlines())) == len(out.splitlines()), "a fault is named once"
    code, out, err = spoken(capsys, "inspect", folder)
    assert (code, err) == (0, "")
    assert "EAGLE-3 drafter" in out
    assert problem in out
    code, _, err = spoken(capsys, "export", folder, "--format", "sglang")
    assert code == 1
    assert problem in err


@pytest.mark.parametrize("where", ["in the drafter", "beside it"])
def test_what_would_name_its_target_is_broken(
    run: Path, capsys: pytest.CaptureFixture[str], target: TargetInfo, where: str
) -> None:
    """And is said to be, wherever it lies."""
    for folder in (run, run / "drafter"):
        (folder / "provenance.json").unlink()
    broken = (run / "drafter" if where == "in the drafter" else run) / "provenance.json"
    broken.write_text('{"target": {')
    for command in (("verify",), ("export", "--format", "sglang")):
        code, _, err = spoken(capsys, *command, run / "drafter")
        assert code == 2
        assert f"which target is it for? {broken} would say it, and is broken or empty. Add --target" in err
    assert spoken(capsys, "verify", run / "drafter", "--target", target.path)[0] == 0


def test_damaged_weights(run: Path, target: TargetInfo, capsys: pytest.CaptureFixture[str]) -> None:
    weights = run / "drafter" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    code, out, _ = spoken(capsys, "verify", run, "--all")
    assert (code, len(out.splitlines())) == (1, 1)
    assert "truncated or damaged" in out
    assert spoken(capsys, "inspect", run / "drafter")[0] == 0
    weights.unlink()
    code, out, _ = spoken(capsys, "verify", run, "--all")
    assert (code, len(out.splitlines())) == (1, 1)
    assert "the drafter's weights are missing" in out
    assert "target" not in out
    assert "none: no *.safetensors" in spoken(capsys, "inspect", run / "drafter")[1]


def test_a_run_whose_drafter_is_gone(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    training = tmp_path / "its training"
    shutil.move(run / "drafter", training / "drafter")
    code, out, _ = spoken(capsys, "verify", run)
    assert code == 1
    assert "its drafter is missing" in out
    assert "The same command makes it again" in out
    made = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps({**made, "artifacts": {"train": str(training)}}))
    remedy = shlex.split(spoken(capsys, "verify", run)[1].rpartition("eagle3 ")[2])
    code, _, err = spoken(capsys, *remedy, tmp_path / "again")
    assert code == 0, err
    assert (tmp_path / "again" / "model.safetensors").is_file()
    for config in ("until: extract\n", "until: report\nevaluate: {drafter: /theirs}\n"):
        (run / "config.yaml").write_text(config)
        assert spoken(capsys, "verify", run)[0] == 2, "it was to have none"
    (run / "config.yaml").write_text("a: [\n")
    code, _, err = spoken(capsys, "verify", run)
    assert code == 1
    assert "not a run's configuration" in err


@pytest.mark.parametrize("to", ["target", "runs/mine/now", "other/drafter", "a file", "target/config.json", "notes"])
def test_only_an_earlier_export_is_written_over(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    shutil.copytree(run, tmp_path / "other")
    (tmp_path / "a file").write_text("mine")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("mine")

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = content()
    code, _, err = spoken(capsys, "export", run, tmp_path / to, "--format", "sglang")
    assert code == 2
    assert "is no earlier export" in err or "is no folder" in err
    assert content() == before


def test_an_earlier_export_is_written_over(
    tmp_path: Path, run: Path, theirs: Path, target: TargetInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json.partial").touch()  # an export was killed here
    (tmp_path / "out" / "model.safetensors.writing").mkdir()
    (tmp_path / "out" / "model.safetensors.writing" / ".tmpA1b2C3").touch()
    for form in ("sglang", "speculators", "sglang"):
        code, out, err = spoken(capsys, "export", run, tmp_path / "out", "--format", form)
        assert (code, err) == (0, ""), out
        assert spoken(capsys, "verify", tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / "provenance.json").is_file()
    given = ("--format", "sglang", "--target", target.path)
    assert spoken(capsys, "export", theirs, tmp_path / "out", *given)[0] == 0
    assert not (tmp_path / "out" / "provenance.json").exists(), "that was another drafter's"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors", "README.md"}


def test_another_target_is_refused(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_target(tmp_path / "other", num_layers=9)
    code, _, err = spoken(capsys, "export", run, tmp_path / "out", "--format", "sglang", "--target", other.path)
    assert code == 1
    assert "it was trained for target, which is another model" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["nested", "top", "missing"])
def test_boundaries_correct_what_config_says(
    tmp_path: Path, theirs: Path, target: TargetInfo, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    def wrong(config: dict) -> None:
        config.pop("eagle_config")
        if place != "missing":
            (config if place == "top" else config.setdefault("eagle_config", {}))[IDS] = [2, 4, 5]

    rewrite(theirs, wrong)
    given = ("--format", "sglang", "--target", target.path, "--sglang-version", "0.5.23")
    for boundaries in ([2, 4, 5], [3, 5, 6]):
        out = tmp_path / f"out{boundaries[0]}"
        code, _, err = spoken(capsys, "export", theirs, out, *given, "--boundaries", ",".join(map(str, boundaries)))
        assert (code, err) == (0, "")
        config = json.loads((out / "config.json").read_text())
        assert config["eagle_config"][IDS] == [b - 1 for b in boundaries]
        assert config["eagle3"]["boundaries"] == boundaries
    for boundaries, problem in (
        ("2,4", "fc.weight"),
        ("2,4,8", "do not exist"),
        ("4,2,5", "order"),
    ):
        code, _, err = spoken(capsys, "export", theirs, tmp_path / "no", *given, "--boundaries", boundaries)
        assert code == 1
        assert problem in err


def test_ours_say_their_boundaries_themselves(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = spoken(capsys, "export", run, "--format", "sglang", "--boundaries", "3,5,6")
    assert code == 2
    assert f"says itself that it was trained on {BOUNDARIES}" in err


@pytest.mark.parametrize(("given", "kept"), [(" 0.5.17", "0.5.17"), ("v0.5.17", "0.5.17"), ("0.5.12.post1",) * 2])
def test_a_version_is_kept_in_its_plain_form(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str], given: str, kept: str
) -> None:
    code, out, err = spoken(capsys, "export", run, "--format", "sglang", "--sglang-version", given)
    assert (code, err) == (0, ""), out
    config = json.loads((run / f"drafter-sglang-{kept}" / "config.json").read_text())
    assert config["eagle3"]["sglang_version"] == kept


@pytest.mark.parametrize("given", ["0", "0.4.0", "99.0", "2026.1"])
def test_a_version_that_nobody_has_looked_at(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    code, _, err = spoken(capsys, "export", run, "--format", "sglang", "--sglang-version", given)
    assert code == 0
    assert f"SGLang {given} is not among those known here (0.5.9 to" in err
    code, out, _ = spoken(capsys, "verify", run, "--sglang-version", given)
    assert code == 0
    assert f"note: SGLang {given} is not among those known here" in out


@pytest.mark.parametrize("given", ["", " ", "new"])
def test_no_version(run: Path, capsys: pytest.CaptureFixture[str], given: str) -> None:
    for command in (("export", run, "--format", "sglang"), ("verify", run)):
        code, _, err = spoken(capsys, *command, "--sglang-version", given)
        assert code == 2
        assert "not a version" in err


def test_a_place_that_can_be_none(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    code, _, err = spoken(capsys, "export", run, tmp_path / "file" / "out", "--format", "sglang")
    assert code == 1
    assert "could not be written" in err


@contextmanager
def full_disk(bytes_left: int) -> Iterator[None]:
    """No file grows beyond so many bytes: a failed write, as on a disk without room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("bytes_left", [0, 10_000])
def test_a_full_disk(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str], bytes_left: int) -> None:
    with full_disk(bytes_left):
        code = main(["export", str(run), str(tmp_path / "out"), "--format", "sglang"])
    _, err = capsys.readouterr()
    assert code == 1
    assert "could not be written" in err
    assert list((tmp_path / "out").iterdir()) == []
    assert spoken(capsys, "export", run, tmp_path / "out", "--format", "sglang")[0] == 0
