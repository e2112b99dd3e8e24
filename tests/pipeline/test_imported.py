"""Training on states that another project stored: import-data, verify, and run.py on what they made."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.data.exchange_cases import LENGTHS, Silent, write_states, write_target
from tests.e2e.chat_model import write_chat_model
from tests.pipeline.imported_runs import store_as_speculators_v1

from eagle3.cli import main
from eagle3.config import PROJECT
from eagle3.data.exchange.exporting import export_data
from eagle3.data.exchange.importing import Import, import_data
from eagle3.data.exchange.table import FORMATS
from eagle3.errors import ConfigError, DataError
from eagle3.pipeline.artifacts import Artifact
from eagle3.pipeline.imported import imported, is_imported, require_whole


def test_a_drafter_is_trained_on_an_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, foreign, out = (tmp_path / name for name in ("model", "foreign", "imported"))
    write_chat_model(model)
    store_as_speculators_v1(model, foreign)
    command = ["import-data", str(foreign), str(out), "--format", "speculators-v1", "--target", str(model)]
    assert main([*command, "--boundaries", "1,3,5"]) == 0
    assert f"train on it with dataset.path={out}" in capsys.readouterr().out
    assert main(["verify", str(out)]) == 0
    assert main(["inspect", str(out)]) == 0
    assert f"imported from {foreign}" in capsys.readouterr().out
    overrides = f"""name=tiny target=local target.name=tiny target.path={model} dataset=jsonl dataset.path={out}
        server=cpu trainer=cpu trainer.epochs=1 trainer.max_steps=2 trainer.tokens_per_batch=256
        layers.boundaries=[1,3,5] drafter.draft_vocab_size=128 loss.ttt_steps=2
        paths.artifacts={tmp_path / "a"} paths.runs={tmp_path / "r"}"""
    argv = [sys.executable, str(PROJECT / "run.py"), *overrides.split()]
    env = {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
    plan = subprocess.run([*argv, "mode=plan"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert plan.returncode == 0, plan.stderr
    assert "prepare: reused" in plan.stdout
    assert "extract: reused" in plan.stdout
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "r").glob("tiny/*/drafter/model.safetensors"))
    assert not (tmp_path / "a" / "extract").exists()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    base = tmp_path_factory.mktemp("imported")
    target = write_target(base / "target")
    states = write_states(base / "d", target, [1, 3], LENGTHS)
    export_data(states.folder, base / "there", FORMATS["specforge"], Silent())
    job = Import(base / "there", FORMATS["specforge"], [1, 3], target)
    import_data(base / "there", base / "back", job, Silent())
    return base, target


def config_of(path: Path) -> Any:
    return SimpleNamespace(dataset=SimpleNamespace(path=str(path)))


def test_the_imported_folder_is_both_stages_artifact(small: tuple[Path, Any]) -> None:
    base, target = small
    assert is_imported(config_of(base / "back"))
    assert not is_imported(config_of(base / "there"))
    prepare, extract = imported(config_of(base / "back"), target, [3])
    assert prepare.done
    assert extract.done
    assert prepare.folder == extract.folder == base / "back"
    assert extract.inputs["capture"] == [1, 3]


def test_what_does_not_fit_the_run_is_refused(small: tuple[Path, Any]) -> None:
    base, target = small
    with pytest.raises(ConfigError, match="without its prompts"):
        imported(config_of(base / "d"), target, [1])
    with pytest.raises(ConfigError, match=r"has boundaries \[1, 3\], not \[2\]"):
        imported(config_of(base / "back"), target, [1, 2])
    with pytest.raises(ConfigError, match="another model"):
        imported(config_of(base / "back"), write_target(base / "other", rms_norm_eps=1e-6), [1])
    (base / "back" / "DONE").unlink()
    with pytest.raises(ConfigError, match="not finished"):
        imported(config_of(base / "back"), target, [1])


def test_a_copied_import_is_read_again_and_a_damaged_one_left_alone(tmp_path: Path) -> None:
    write_target(tmp_path / "model")
    target = write_target(tmp_path / "model")
    own = write_states(tmp_path / "own", target, [1, 3], LENGTHS)
    export_data(own.folder, tmp_path / "foreign", FORMATS["specforge"], Silent())
    job = Import(tmp_path / "foreign", FORMATS["specforge"], [1, 3], target)
    import_data(tmp_path / "foreign", tmp_path / "imported", job, Silent())
    copy = shutil.copytree(tmp_path / "imported", tmp_path / "copy")  # with other times
    (copy / "checked.json").unlink()
    artifact, reporter = Artifact("extract", copy, {}), Silent()
    require_whole(artifact, target, reporter)
    assert len(reporter.notes) == 1
    require_whole(artifact, target, reporter)
    assert len(reporter.notes) == 1, "noted: not read again"
    (shard,) = copy.glob("shard-*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-len(data) // 2] ^= 1
    shard.write_bytes(data)
    before = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}
    with pytest.raises(DataError, match="import-data` that made it"):
        require_whole(artifact, target, reporter)
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()} == before
