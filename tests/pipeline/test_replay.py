"""A run repeated from its folder, by the command a user types: in a checkout of its own that moves and changes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.pipeline.imported_runs import copy_project, overrides, run, write_place

from eagle3.cli import main
from eagle3.config.differences import config_differences, differences
from eagle3.config.origin import FILES, KEY, read_origin
from eagle3.pipeline.replay import Replay, replay_hint


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a target, states, and one finished run; every path in it is relative to the checkout."""
    folder = copy_project(tmp_path_factory.mktemp("checkout") / "eagle3")
    write_place(folder / "data")
    code, output = run(overrides(Path("data"), "paths.artifacts=artifacts", "paths.runs=runs"), folder, folder)
    assert code == 0, output
    return folder


def runs(project: Path) -> list[Path]:
    return sorted((project / "runs" / "tiny").iterdir(), key=lambda folder: folder.stat().st_mtime)


def replay(project: Path, folder: Path, *more: str) -> tuple[int, str]:
    return run(["--config-dir", str(folder), "snapshot=replay", *more], project, project)


def altered(project: Path, to: Path, **changes: Any) -> Path:
    """A copy of the first run whose provenance says something else."""
    shutil.copytree(runs(project)[0], to)
    made = json.loads((to / "provenance.json").read_text())
    for group, values in changes.items():
        made[group] = {**made[group], **values} if isinstance(values, dict) else values
    (to / "provenance.json").unlink()  # a link
    (to / "provenance.json").write_text(json.dumps(made))
    return to


def test_with_its_artifacts_deleted_it_is_bitwise_the_same(project: Path) -> None:
    first = runs(project)[0]
    shutil.rmtree(project / "artifacts")
    code, output = replay(project, first)
    assert code == 0, output
    again = runs(project)[-1]
    assert again != first
    assert "train: done" in output
    assert (again / "config.yaml").read_bytes() == (first / "config.yaml").read_bytes()
    assert (again / "snapshot" / "replay.yaml").read_bytes() == (first / "snapshot" / "replay.yaml").read_bytes()
    for name in ("model.safetensors", "config.json"):
        assert (again / "drafter" / name).read_bytes() == (first / "drafter" / name).read_bytes()
    assert "code, versions, plugin, machine: nothing differs" in output
    assert "target, dataset, and what was evaluated: nothing differs" in output
    assert f"the drafter is bitwise the same as that of {first}" in output
    told = json.loads((again / "provenance.json").read_text())["replay"]
    assert told["differences"] == []
    assert "bitwise the same" in told["outcome"]


def test_what_differs_is_printed_and_strict_refuses_it(project: Path, tmp_path: Path) -> None:
    then = {"versions": {"torch": "2.0.0"}, "plugin_sha256": "0" * 64, "git": {"commit": "a" * 40, "dirty": False}}
    other = altered(project, tmp_path / "other", machine={"gpus": ["GPU of old"], "driver": "1"}, **then)
    code, output = replay(project, other, "mode=plan")
    assert code == 0, output
    for text in ("torch: 2.0.0 -> ", "dump plugin: sha256 000000000000 -> ", "GPU: GPU of old -> "):
        assert text in output
    before = runs(project)
    code, output = replay(project, other, "replay.strict=true")
    assert code == 2, output
    assert "error: replay.strict" in output
    assert "torch: 2.0.0 -> " in output
    assert runs(project) == before, "a run folder was left"
    code, output = replay(project, runs(project)[0], "replay.strict=true", "mode=plan")
    assert code == 0, output


def test_another_drafter_is_measured_by_its_weights_and_held_out_figures(project: Path, tmp_path: Path) -> None:
    """As a GPU's training repeats: other weights, and within the tolerance or not."""
    last = runs(project)[0]
    other = altered(project, tmp_path / "other")
    saved = other / "drafter" / "model.safetensors"
    tensors = load_file(saved)
    tensors["midlayer.mlp.up_proj.weight"] *= 1.5
    save_file(tensors, saved)
    said = Replay(other, strict=False).outcome(last)
    length = json.loads((last / "report" / "summary.json").read_text())["val/accept_length"]
    assert f"the drafter is not bitwise that of {other}: its weights differ by 0." in said
    assert "most of all midlayer.mlp.up_proj.weight, by 0.33 of its own" in said
    assert f"held-out accept length {length:.3f} against {length:.3f} then (0.00%), loss " in said
    assert "within the 2%" in said

    summary = json.loads((other / "report" / "summary.json").read_text())
    (other / "report" / "summary.json").write_text(json.dumps(summary | {"val/accept_length": 1.1 * length}))
    assert "WARNING" in Replay(other, strict=False).outcome(last)
    made = json.loads((other / "provenance.json").read_text())
    made["artifacts"]["train"] = made["artifacts"]["train"][:-1] + "-"
    (other / "provenance.json").write_text(json.dumps(made))
    assert "it is another training" in Replay(other, strict=False).outcome(last)


def test_another_target_or_dataset_is_seen_before_anything_is_written(project: Path, tmp_path: Path) -> None:
    other = altered(project, tmp_path / "other", target={"fingerprint": "f" * 64}, dataset={"fingerprint": "e" * 64})
    before = runs(project)
    for mode in ("plan", "run"):
        code, output = replay(project, other, "replay.strict=true", f"mode={mode}")
        assert code == 2, output
        assert "target: tiny ffffffffffff -> tiny " in output
        assert "dataset: jsonl eeeeeeeeeeee -> jsonl " in output
        assert "train" not in output
        assert runs(project) == before, "a run folder was left"


def test_a_moved_repository_and_a_renamed_option(project: Path) -> None:
    moved = project.parent / "moved"
    project.rename(moved)
    try:
        first = runs(moved)[0]
        code, output = replay(moved, first)
        assert code == 0, output
        assert [stage for stage in ("train", "evaluate") if f"{stage}: reused {moved}" in output] == [
            "train",
            "evaluate",
        ]
        assert "bitwise the same" in output
        (moved / "conf" / "target" / "local.yaml").rename(moved / "conf" / "target" / "mine.yaml")
        code, output = replay(moved, first)
        assert code == 2
        assert "Could not find 'target/local'" in output
        assert "e.g. target=NAME (every value stays the snapshot's)" in output
        assert "Traceback" not in output
        code, output = replay(moved, first, "target=mine", "mode=plan")
        assert code == 0, output
        assert f"target    tiny: {moved / 'data' / 'model'}" in output
    finally:
        (moved / "conf" / "target" / "mine.yaml").rename(moved / "conf" / "target" / "local.yaml")
        moved.rename(project)


def test_a_drafter_and_a_checkpoint_found_on_a_disk_say_how_they_were_made(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = runs(project)[0]
    drafter = shutil.copytree(first / "drafter", tmp_path / "drafter")
    assert main(["inspect", str(drafter)]) == 0
    out = capsys.readouterr().out
    assert "an EAGLE-3 drafter" in out
    assert f"repeat        python run.py --config-dir {drafter} snapshot=replay" in out
    assert "command       " in out
    code, output = replay(project, drafter, "mode=plan")
    assert code == 0, output

    for name in ("best", "last"):
        (saved,) = (project / "artifacts" / "train").glob(f"*/checkpoints/{name}.ckpt")
        texts = torch.load(saved, weights_only=True)[KEY]
        assert set(texts) == set(FILES)
        assert texts["config.yaml"] == (first / "config.yaml").read_text()
        assert main(["inspect", str(saved)]) == 0
        out = capsys.readouterr().out
        assert "a training's checkpoint" in out
        assert f"eagle3 inspect {saved} --snapshot" in out
        assert main(["inspect", str(saved), "--snapshot", str(tmp_path / name)]) == 0
        assert f"--config-dir {tmp_path / name} snapshot=replay" in capsys.readouterr().out
        assert read_origin(tmp_path / name) == texts
    assert main(["inspect", str(drafter), "--snapshot", str(tmp_path / "x")]) == 2


def test_no_snapshot_there(project: Path, tmp_path: Path) -> None:
    code, output = replay(project, tmp_path)
    assert code == 2
    assert f"no snapshot/replay.yaml in {tmp_path}" in output
    for group, options in (("snapshot=replai", "there are: replay"), ("debug=tinny", "there are: tiny")):
        code, output = run(["--config-dir", str(runs(project)[0]), group], project, project)
        assert code == 2, output
        assert f"is no option; {options}" in output
    code, output = run(["experiment=quickstart", "replay.strict=true", "mode=plan"], project, project)
    assert code == 2
    assert "replay.strict: nothing is repeated" in output


def test_the_hint_names_the_commit(tmp_path: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "replay.yaml").touch()
    (tmp_path / "provenance.json").write_text(json.dumps({"git": {"commit": "abc123"}}))
    assert "`git checkout abc123`" in str(
        replay_hint(["run.py", f"--config-dir={tmp_path}", "snapshot=replay"], "x: ?")
    )
    assert replay_hint(["run.py", "experiment=quickstart"], "x: ?") is None
    no_name = ["run.py", "--config-dir", "x" * 300, "snapshot=replay"]
    assert "give --config-dir a run's folder" in str(replay_hint(no_name, "x: ?"))
    typed = ["run.py", f"--config-dir={tmp_path}", "snapshot=replay", "optim.lrr=1", "target=smoll"]
    assert replay_hint(typed, "optim.lrr: no such key; did you mean optim.lr?") is None
    assert replay_hint(typed, "In 'config': Could not find 'target/smoll'") is None
    assert replay_hint(typed, "In 'config': Could not find 'target/smollm2'") is not None


def test_differences_of_provenances() -> None:
    then = {
        "git": {"commit": "a" * 40, "dirty": True, "diff_sha256": "b" * 64},
        "machine": {"gpus": [], "driver": None, "cpus": 2, "host": "here"},
        "nccl_env": {"NCCL_ALGO": "Ring"},
        "threads": {"OMP_NUM_THREADS": None},
    }
    now = {
        "git": {"commit": "a" * 40, "dirty": False},
        "machine": {"gpus": ["NVIDIA H200"], "driver": "570", "cpus": 2, "host": "there"},
        "nccl_env": {"NCCL_PROTO": "LL"},
        "threads": {"OMP_NUM_THREADS": "4"},
        "target": {"name": "t", "fingerprint": "f"},
    }
    assert differences(then, then) == []
    assert [str(one) for one in differences(then, now)] == [
        f"local changes: sha256 {'b' * 12} -> none",
        "GPU: none -> NVIDIA H200",
        "GPU driver: none -> 570",
        "OMP_NUM_THREADS: not set -> 4",
        "NCCL_ALGO: Ring -> not set",
        "NCCL_PROTO: not set -> LL",
    ]


def test_differences_of_configurations() -> None:
    then = {"seed": 0, "loss": {"kind": "ce"}, "replay": {"strict": False}, "server": {"env": {}}}
    now = {"seed": 1, "loss": {"kind": "ce", "new": 1}, "replay": {"strict": True}, "server": {"env": {}}}
    assert [str(one) for one in config_differences(then, now)] == ["seed: 0 -> 1", "loss.new: (no such key) -> 1"]


def test_other_prompts_or_another_drafter_to_measure_are_seen_too(project: Path, tmp_path: Path) -> None:
    """Files that keep their names."""
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"prompt": "What is 2 + 2?"}\n')
    other = altered(project, tmp_path / "other", evaluated={"prompts": "f" * 64, "drafter": "e" * 64})
    given = ("evaluate.kind=chain", f"evaluate.prompts=[{mine}]", "replay.strict=true", "mode=plan")
    code, output = replay(project, other, *given)
    assert code == 2, output
    assert "evaluated prompts: sha256 ffffffffffff -> sha256 " in output
    assert "evaluated drafter" not in output, "one was trained"
    code, output = replay(project, other, *given, f"evaluate.drafter={other / 'drafter'}")
    assert code == 2, output
    assert "evaluated drafter: sha256 eeeeeeeeeeee -> sha256 " in output


def test_an_option_that_would_change_nothing_is_refused_with_the_values(project: Path) -> None:
    """The snapshot's values come after it."""
    first, before = runs(project)[0], runs(project)
    for option, values in (
        ("evaluate=chain", ", such as evaluate.kind=chain"),
        ("tracking=online", ", such as tracking.mode=online"),
        ("nccl@nccl.serving=ring_ll", ", such as nccl.serving.name=ring_ll nccl.serving.env.NCCL_PROTO=LL "),
        ("experiment=quickstart", ""),
    ):
        code, output = replay(project, first, option)
        assert code == 2, output
        assert f"error: {option}: a snapshot holds every value" in output
        assert f"give values{values}" in output
    assert runs(project) == before
    code, output = replay(project, first, "evaluate=simulated", "mode=plan")
    assert code == 0, output
