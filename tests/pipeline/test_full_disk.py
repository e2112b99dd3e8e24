"""A disk that refuses, told in one line: which file, and no more of what libraries say about their own logs."""

import errno
import logging
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle3.pipeline.main import main


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logging, "raiseExceptions", True)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def failing(error: OSError) -> Callable[[], None]:
    def job() -> None:
        raise error

    return job


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/artifacts/a", None, "/runs/a"),
            "error: /runs/a: No space left on device; make room there",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "make room on the disks of paths.runs and paths.artifacts"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/a/drafter"), "/a/drafter: .*was it removed?"),
        (PermissionError(errno.EACCES, "Permission denied", "/runs"), "/runs: Permission denied; .*can be written"),
    ],
)
def test_the_file_is_named_and_what_to_do(error: OSError, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(failing(error)) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(says, said), said


def test_a_log_that_can_not_be_written_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.FileHandler(Path("/dev/full"))
    logger = logging.getLogger("a library's")
    logger.addHandler(handler)
    logger.propagate = False
    assert main(lambda: logger.error("something")) == 0
    logger.removeHandler(handler)
    assert capsys.readouterr().err == ""
