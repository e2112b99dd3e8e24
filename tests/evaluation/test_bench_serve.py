"""bench/serve.py on a machine that can't serve, or with overrides that are wrong: a line and a code, no server."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from hydra.core.global_hydra import GlobalHydra
from tests.drafter.targets import make_target

from eagle3.config import PROJECT
from eagle3.errors import EXIT_BAD_CONFIG


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_serve", PROJECT / "bench" / "serve.py")
    assert spec is not None
    assert spec.loader is not None
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    return serve


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("evaluate.rounds=1", "server.tp: 1, and torch finds 0 GPUs here"),
        ("server=cpu", "SGLang speculates on GPUs only"),
        ("evaluate.rond=1", "did you mean evaluate.rounds?"),
        ("evaluate.prompts=[gone.jsonl]", "evaluate.prompts: gone.jsonl is no file"),
    ],
)
def test_what_can_not_be_measured_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], override: str, says: str
) -> None:
    serve = script()
    target = make_target(tmp_path / "target")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    GlobalHydra.instance().clear()
    given = [str(target.path), str(tmp_path / "drafter"), "--out", str(tmp_path / "out"), override]
    monkeypatch.setattr("sys.argv", ["serve.py", *given])
    assert serve.main() == EXIT_BAD_CONFIG
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_loads_are_kept_of_the_same_measurement_alone(tmp_path: Path) -> None:
    """A killed one goes on; another drafter, target or override begins anew."""
    serve = script()
    target, drafter, out = make_target(tmp_path / "target"), tmp_path / "drafter", tmp_path / "out"
    drafter.mkdir()
    (drafter / "config.json").write_text("{}")
    out.mkdir()
    GlobalHydra.instance().clear()

    def begin(*overrides: str) -> bool:
        """Whether what was measured is kept."""
        (out / "loads.jsonl").touch()
        cfg = serve.config_of(target.path, None, list(overrides))
        serve.begin(out, serve.measurement(cfg, target, drafter, None))
        return (out / "loads.jsonl").exists()

    assert not begin(), "of nobody knows what"
    assert begin()
    assert not begin("evaluate.rounds=1")
    assert begin("evaluate.rounds=1")
    assert not begin()
    (drafter / "config.json").write_text('{"a": 1}')
    assert not begin()
    assert begin()
    (out / "measurement.json").write_text('{"config": ')
    assert not begin()
    assert begin()
