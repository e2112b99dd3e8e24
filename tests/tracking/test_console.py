"""What the terminal and a log file show of a stage."""

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from eagle3.metrics import JsonlReporter, Tail
from eagle3.tracking import console as module
from eagle3.tracking.console import ConsoleReporter, FanOut
from eagle3.units import acceptances, duration, field_text, numbers, quantity, size


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The reporter's clock; a test moves it."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def plain() -> tuple[ConsoleReporter, io.StringIO]:
    out = io.StringIO()
    return ConsoleReporter(Console(file=out, soft_wrap=True, width=200)), out


def test_a_log_file_gets_a_line_every_ten_seconds_and_the_last_state(clock: list[float]) -> None:
    reporter, out = plain()
    with reporter.stage("extract"):
        for second in range(31):
            clock[0] += 1
            reporter.progress(second * 10, 300, unit="sequences", tokens_per_s=412.3, bytes=3 << 20)
    lines = out.getvalue().splitlines()
    assert len(lines) == 5  # three in thirty seconds, the last state, and the end
    assert lines[0] == "extract: 90/300 sequences · 10 s · ETA 21 s · 412 tokens/s · 3.0 MiB"
    assert lines[3].startswith("extract: 300/300 sequences")
    assert lines[4] == "extract: done in 31 s"


def test_rate_leaves_out_what_was_done_before(clock: list[float]) -> None:
    reporter, out = plain()
    with reporter.stage("train"):
        for second in range(12):
            clock[0] += 1
            reporter.progress(900 + second, 1000, unit="steps")
    assert "· 1 steps/s ·" in out.getvalue()
    assert "ETA 1 min" in out.getvalue()


def test_another_phase_has_a_rate_of_its_own(clock: list[float]) -> None:
    reporter, out = plain()
    with reporter.stage("extract"):
        for _ in range(11):
            clock[0] += 1
            reporter.progress(4, 4, unit="proofs")
        for done in range(12):
            clock[0] += 1
            reporter.progress(10 * done, 1000, unit="sequences")
    assert "110/1,000 sequences · 10 sequences/s" in out.getvalue()


def test_a_stage_that_fails_says_so(clock: list[float]) -> None:
    reporter, out = plain()

    def stage() -> None:
        with reporter.stage("train"):
            clock[0] += 75
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        stage()
    assert out.getvalue() == "train: stopped after 1 min 15 s\n"


def test_notes_and_reuse(clock: list[float]) -> None:
    reporter, out = plain()
    reporter.note("[a] note in brackets")
    with reporter.stage("extract"):
        reporter.note("server ready in 23 s")
    reporter.reused("train", "artifacts/train/x")
    assert out.getvalue().splitlines() == [
        "[a] note in brackets",
        "extract: server ready in 23 s",
        "extract: done in 0 s",
        "train: reused artifacts/train/x",
    ]


def test_a_terminal_gets_a_bar_that_is_taken_away() -> None:
    out = io.StringIO()
    reporter = ConsoleReporter(Console(file=out, force_terminal=True, width=160))
    with reporter.stage("train"):
        for step in range(100_000):
            reporter.progress(step, 100_000, unit="steps", loss=2.5, accept_length=1.75)
        reporter.note("checkpoint written")
    text = out.getvalue()
    assert "train" in text
    assert "accept length 1.75" in text
    assert "checkpoint written" in text
    assert text.count("\n") < 100, "a line for every call"
    assert text.rstrip().endswith("train: done in 0 s") or "done in" in text.splitlines()[-1]


def test_unknown_total(clock: list[float]) -> None:
    reporter, out = plain()
    reporter.progress(5, 0, unit="sequences")
    reporter.close()
    assert out.getvalue().startswith("5 sequences")


def test_fan_out_reaches_all(tmp_path: Path, clock: list[float]) -> None:
    reporter, out = plain()
    file = JsonlReporter(tmp_path / "metrics.jsonl")
    both = FanOut(reporter, file)
    both.log({"train/loss": 1.5}, step=3)
    both.progress(1, 2, unit="steps")
    both.note("hello")
    reporter.close()
    file.close()
    rows = list(Tail(tmp_path / "metrics.jsonl").rows())
    assert rows[0]["values"] == {"train/loss": 1.5}
    assert rows[1]["progress"]["done"] == 1
    assert json.dumps(rows[2]["note"]) == '"hello"'
    assert "hello" in out.getvalue()
    assert "1/2 steps" in out.getvalue()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (quantity(48120), "48,120"),
        (quantity(1234.56), "1,235"),
        (quantity(0.5), "0.5"),
        (quantity(math.nan), "nan"),
        (quantity(math.inf), "inf"),
        (duration(4.2), "4 s"),
        (duration(184), "3 min 04 s"),
        (duration(7800), "2 h 10 min"),
        (" ".join(acceptances([0.5, 0.25, 0.0, 0.0, 0.0])), "50.0% 25.0% 0.0% - -"),
        (" ".join(acceptances([0.5, 1.0], 0)), "50% 100%"),
        (numbers([0, 1]), "0, 1"),
        (numbers([0, 2, 3, 4, 5, 9]), "0, 2 to 5, 9"),
        (size(512), "512 B"),
        (size(3 * 2**20), "3.0 MiB"),
        (size(924 * 2**30), "924.0 GiB"),
        (field_text("free_bytes", 2**30), "free 1.0 GiB"),
        (field_text("free_gib", 12.5), "free 12.5 GiB"),
        (field_text("bytes_per_s", 3.6e9), "3.60 GB/s"),
        (field_text("gb", 12.348), "12.35 GB"),
        (field_text("gb", 0.00123), "0.0012 GB"),
        (field_text("accept_length", 1.0), "accept length 1.00"),
        (field_text("gb_per_s", 3.6), "3.60 GB/s"),
        (field_text("tokens_per_s", 412.3), "412 tokens/s"),
        (field_text("prefill", 5668.2), "prefill 5,668"),
        (field_text("accept_length", 1.756), "accept length 1.76"),
        (field_text("data_wait", 0.0123), "data wait 1.2%"),
        (field_text("lr", 5e-5), "lr 5.00e-05"),
        (field_text("queue", 12), "queue 12"),
        (field_text("phase", "proof"), "phase proof"),
    ],
)
def test_units(text: str, wanted: str) -> None:
    assert text == wanted
