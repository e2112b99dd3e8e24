"""A sweep's name, its union of boundaries, its table and ranking; and that every shipped sweep composes."""

import json
import signal
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict
from tests.pipeline.test_artifacts import Notes

from eagle3 import config
from eagle3.comparison.variants import REPEATS
from eagle3.errors import Eagle3Error
from eagle3.pipeline.artifacts import locked
from eagle3.pipeline.sweep import _digest, _jobs, _union
from eagle3.pipeline.sweep_job import _cause, record_failure, settle
from eagle3.pipeline.sweep_table import SWEEP_FILE, Record, read_records, varied, write_tables

SWEEPS = sorted(path.stem for path in (config.PROJECT / "sweeps").glob("*.yaml"))
SEARCH = f"hydra.searchpath=[file://{config.PROJECT / 'conf'}]"
GIVEN = ["target=smollm2", "dataset=quickstart", "server=cpu", "trainer=cpu"]


@pytest.fixture(autouse=True)
def _hydra():
    config.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config.PROJECT / "sweeps"), version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def sweep(name: str, *task: str) -> DictConfig:
    """As Hydra composes it for the sweeper."""
    found = compose(name, [*GIVEN, SEARCH], return_hydra_config=True)
    with open_dict(found):
        found.hydra.overrides.task = [*GIVEN, *task]
    return found


@pytest.mark.parametrize("name", SWEEPS)
def test_every_choice_of_every_sweep_composes_and_validates(name: str) -> None:
    found = sweep(name)
    jobs = _jobs(found)
    assert jobs is not None
    assert len(jobs) > 1
    assert set(found.hydra.sweeper.params) & set(REPEATS), "without repeats no spread is known"
    for item in {item: None for job in jobs for item in job if item not in GIVEN}:
        assert config.load(compose(name, [*GIVEN, item, SEARCH])).name == name


def test_all_choices_of_boundaries_are_captured_at_once() -> None:
    found = sweep("layers")
    assert _union(found, _jobs(found)) == [1, 2, 8, 15, 22, 27, 29]
    other = sweep("layers", "layers.boundaries=[1,3],[3,5]", "seed=0")
    jobs = _jobs(other)
    assert jobs == [[f"layers.boundaries=[{b}]", "seed=0", *GIVEN] for b in ("1,3", "3,5")]
    assert _union(other, jobs) == [1, 3, 5]
    said = sweep("layers", "layers.capture=[1,3,5,7]")
    assert _union(said, _jobs(said)) is None
    assert _union(sweep("drafters"), _jobs(sweep("drafters"))) is None


def test_a_choice_that_the_target_does_not_have_is_not_captured() -> None:
    found = sweep("layers", "layers.boundaries=[1,3,5],[1,9,200],[2,4,5]")
    assert _union(found, _jobs(found)) == [1, 2, 3, 4, 5]
    found = sweep("layers", "layers.boundaries=[1,3],null,[2]", "target.shape.num_layers=4")
    assert _union(found, _jobs(found)) == [1, 2, 3], "too shallow for the default"


def test_a_choice_of_the_group_is_captured_like_one_of_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    def union(*task: str) -> list[int] | None:
        found = sweep("drafters", *task)
        return _union(found, _jobs(found))

    assert union("layers=auto,kimi_k25", "target.shape.num_layers=61") == [2, 3, 30, 31, 58, 59]
    assert union("layers=auto,kimi_k25", "layers.boundaries=[5]") is None, "one choice by another name"
    assert union("layers=auto,kimi_k25", "layers.capture=[1,2,3]") is None
    assert union("layers.boundaries=[4,5],null") == [2, 4, 5, 15, 27]
    assert union("layers=auto,no_such_one") is None, "Hydra says so"
    assert not capsys.readouterr().err
    assert union("layers=auto,kimi_k25", "target.shape=null", "target.path=not/here", "target.pypi=null") is None
    assert "layers=auto" in capsys.readouterr().err


def test_the_same_command_has_the_same_name_whatever_it_does_about_failures() -> None:
    assert _digest(sweep("layers")) == _digest(sweep("layers")) == _digest(sweep("layers", "sweep.fail_fast=true"))
    assert _digest(sweep("layers", "seed=0,1")) != _digest(sweep("layers"))
    changed = sweep("layers")
    OmegaConf.update(changed, "optim.lr", 1e-5)
    assert _digest(changed) != _digest(sweep("layers"))


def test_what_all_jobs_have_is_not_varied() -> None:
    found = [Record(i, [f"x={name}", f"seed={seed}", "y=same"]) for i, (name, seed) in enumerate(["a0", "a1", "b0"])]
    assert varied(found)[1] == ["x=a", "seed=1"]


def test_the_table_has_every_job_and_every_cause(tmp_path: Path) -> None:
    (tmp_path / SWEEP_FILE).write_text(json.dumps({"jobs": [["x=a"], ["x=b"], ["x=c"]]}))
    (tmp_path / "0").mkdir()
    Record(0, ["x=a"], log="/logs/0").end(tmp_path / "0", "failed", 3.0, "no room\nfor it")
    found = read_records(tmp_path)
    assert [(record.number, record.status) for record in found] == [(0, "failed"), (1, "not run"), (2, "not run")]
    write_tables(tmp_path, found, [])
    text = (tmp_path / "sweep.md").read_text()
    assert "| 0 | x=a | failed | 3 s |" in text
    assert "| 2 | x=c | not run |  |" in text
    assert "job 0 failed: no room\nfor it\nlog: /logs/0" in text


def test_one_cause_of_several_jobs_is_said_once(tmp_path: Path) -> None:
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        log = f"/logs/{number}"
        Record(number, [], log=log).end(tmp_path / str(number), "failed", 1.0, f"no room\n(log: {log}/train)")
    write_tables(tmp_path, [*read_records(tmp_path), Record(2, [], "failed", failure="not so")], [])
    text = (tmp_path / "sweep.md").read_text()
    assert "job 0, 1 failed: no room" in text
    assert "log: /logs/0\nlog: /logs/1\n" in text
    assert "job 2 failed: not so" in text
    assert "None" not in text
    write_tables(tmp_path, [Record(0, ["x=a", "seed=0"], "done", 1.0)], [])
    text = (tmp_path / "sweep.md").read_text()
    assert "1 job\n" in text
    assert "x=a" not in text, "nothing was varied"


@pytest.mark.parametrize("content", ['{"number": ', "[]", "{}"])
def test_a_damaged_record_hides_no_other(tmp_path: Path, content: str) -> None:
    (tmp_path / SWEEP_FILE).write_text(json.dumps({"jobs": [["x=a"], ["x=b"], ["x=c"]]}))
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        Record(number, [f"x={'ab'[number]}"]).end(tmp_path / str(number), "done", 1.0)
    (tmp_path / "1" / "job.json").write_text(content)
    found = read_records(tmp_path)
    assert [(record.status, record.overrides) for record in found] == [
        ("done", ["x=a"]),
        ("damaged", ["x=b"]),
        ("not run", ["x=c"]),
    ]
    write_tables(tmp_path, found, [])
    text = (tmp_path / "sweep.md").read_text()
    assert f"job 1 damaged: {tmp_path / '1' / 'job.json'} can't be read; the same command writes it again" in text


def test_what_the_disk_does_not_take_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = tmp_path / "0" / "job.json.new"
    refused.mkdir(parents=True)  # where the record would be written
    (tmp_path / "sweep.md" / "taken").mkdir(parents=True)
    record_failure(Record(0, ["x=a"]), tmp_path / "0", Eagle3Error("no room"))
    records = [Record(0, ["x=a"], "running"), Record(1, ["x=b"])]
    settle(tmp_path, records, interrupted=False)
    assert (records[0].status, records[0].failure) == ("failed", "no room"), "and not that its process was killed"
    write_tables(tmp_path, records, [])
    out, err = capsys.readouterr()
    assert "job 0 failed: no room" in out
    assert "warning: the table is not kept: " in err


def test_a_job_that_was_killed_is_said_to_be_with_its_stage() -> None:
    log = "train: epoch 3: held-out accept length 1.177, loss 3.331\nplots.py:207: UserWarning: x"
    assert _cause(-signal.SIGKILL, log) == "killed in train (SIGKILL); was memory short?"
    assert _cause(-signal.SIGKILL, "") == "killed (SIGKILL); was memory short?"
    assert _cause(-signal.SIGSEGV, log).startswith("SIGSEGV ended it in train\n")
    assert _cause(1, f"{log}\nerror: no room") == "no room"


def test_a_job_whose_process_is_gone_is_recorded(tmp_path: Path) -> None:
    for number in (0, 1):
        Record(number, [f"x={number}"], "running").write(tmp_path / str(number))
    with locked(tmp_path / "1", Notes()):
        settle(tmp_path, read_records(tmp_path), interrupted=False)
    settled = read_records(tmp_path)
    assert [record.status for record in settled] == ["failed", "running"]
    assert "scheduler's limit" in (settled[0].failure or "")
