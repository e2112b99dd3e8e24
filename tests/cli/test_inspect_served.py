"""`eagle3 inspect` of evaluations by a server, and of those that follow its answers."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.speaking import spoken

from eagle3.files.json_file import write_json


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
