"""`eagle3 inspect` of evaluations by a server, and of those that follow its answers."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.speaking import spoken

from eagle3.files.json_file import write_json
from eagle3.metrics import JsonlReporter
from eagle3.pipeline.artifacts import DONE


def test_inspect_an_evaluation_that_was_served_and_one_that_followed_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A served one has no job; what a chain says of it is said here too."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "loads.jsonl").write_text("")
    write_json(served / "inputs.json", {"evaluate": {"kind": "served"}})
    found: dict[str, Any] = {"eval/accept_length": 2.5, "eval/sequences": 4}
    write_json(served / "summary.json", found | {"serve/best": "s3k1d4", "serve/speedup": 1.2})
    code, out, _ = spoken(capsys, "inspect", str(served))
    assert code == 0
    assert all(text in out for text in ("an evaluation", "served", "accept length 2.50", "1.20x", "s3k1d4"))
    followed = {"eval/followed/served_accept_length": 2.6, "eval/followed/same_passes": 3}
    write_json(served / "summary.json", found | followed)
    _, out, _ = spoken(capsys, "inspect", str(served))
    assert "WARNING: on the served answers, accept length 2.500, the server's 2.600; 3 of 4 answers" in " ".join(
        out.split()
    )


def test_inspect_an_evaluation_that_was_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How far it is; when it is finished its figures say more."""
    write_json(tmp_path / "inputs.json", {"evaluate": {"kind": "chain"}})
    reporter = JsonlReporter(tmp_path / "metrics.jsonl")
    reporter.progress(11, 32, unit="prompts", accept_length=1.844)
    reporter.close()
    (tmp_path / "loads.jsonl").write_text("")
    assert "so far        11 of 32 prompts, accept length 1.84" in spoken(capsys, "inspect", str(tmp_path))[1]
    (tmp_path / DONE).touch()
    assert "so far" not in spoken(capsys, "inspect", str(tmp_path))[1]


def test_inspect_a_run_that_measured_a_given_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures are not those of a training."""
    (tmp_path / "config.yaml").write_text("until: report\n")
    (tmp_path / "report").mkdir()
    figures = {"eval/accept_length": 2.5, "eval/training_known": 0, "eval/left_out": 0}
    write_json(tmp_path / "report" / "summary.json", figures | {"drafter": "/drafters/theirs"})
    write_json(tmp_path / "provenance.json", {"command": "run.py", "artifacts": {}})
    (tmp_path / "snapshot").mkdir()
    (tmp_path / DONE).touch()
    out = " ".join(spoken(capsys, "inspect", str(tmp_path))[1].split())
    assert "measured accept length 2.50 drafter /drafters/theirs, measured as it was given" in out
    assert "trained on not known: it may have seen some of what it was asked" in out
