"""What the person at the terminal sees: one line a stage that moves, and notes above it.

On a terminal a rich progress bar; in a file or a pipe one plain line every ten seconds and one at the end.
Stages call at any rate: a call between two refreshes costs a dictionary update.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from eagle3.metrics import Reporter
from eagle3.tracking.units import duration, field_text, quantity

REFRESH_S = 0.2
RATE_MEMORY_S = 20.0
"""The rate shown (and with it the ETA) forgets what is older than about this."""


class FanOut:
    """One reporter for several: the terminal, the file, W&B."""

    def __init__(self, *reporters: Reporter) -> None:
        self.reporters = reporters

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        for reporter in self.reporters:
            reporter.log(values, step)

    def progress(self, done: float, total: float, **fields: Any) -> None:
        for reporter in self.reporters:
            reporter.progress(done, total, **fields)

    def note(self, text: str) -> None:
        for reporter in self.reporters:
            reporter.note(text)


class _Pace:
    """How fast `done` moves, in units a second; work done before the first report (a resumed stage) does not count."""

    def __init__(self) -> None:
        self.start = self.time = time.monotonic()
        self.first: float | None = None
        self.done = 0.0
        self.rate = 0.0

    def update(self, done: float) -> None:
        now = time.monotonic()
        if self.first is None or done < self.done:  # a new counter: epochs and phases begin again at nought
            self.first, self.done, self.time, self.rate = done, done, now, 0.0
            return
        elapsed = now - self.time
        if elapsed < REFRESH_S:
            return
        current = (done - self.done) / elapsed
        keep = 0.0 if self.rate == 0.0 else max(0.0, 1.0 - elapsed / RATE_MEMORY_S)
        self.rate = keep * self.rate + (1.0 - keep) * current
        self.done, self.time = done, now


class ConsoleReporter:
    """A `Reporter` for the terminal. Use `stage()` around each stage so that the line carries its name."""

    def __init__(self, console: Console | None = None, interval_s: float = 10.0) -> None:
        self.console = console or Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self.interval_s = interval_s
        self._live = self.console.is_terminal
        self._stage = ""
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._reset()

    def _reset(self) -> None:
        self._pace = _Pace()
        self._shown = 0.0 if self._live else time.monotonic()
        self._now: tuple[float, float, dict[str, Any]] | None = None
        self._dirty = False

    # -- Reporter ---------------------------------------------------------------------------------------------------

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Rows of history are for files and plots; the line shows the fields of `progress`."""

    def progress(self, done: float, total: float, **fields: Any) -> None:
        self._now = (done, total, fields)
        self._dirty = True
        now = time.monotonic()
        if now - self._shown >= (REFRESH_S if self._live else self.interval_s):
            self._shown = now
            self._show()
        elif self._pace.first is None:
            self._pace.update(done)

    def note(self, text: str) -> None:
        prefix = f"{self._stage}: " if self._stage else ""
        self.console.print(f"{prefix}{text}", markup=False)

    # -- stages -----------------------------------------------------------------------------------------------------

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The stage that the following reports belong to; ends with a line that says how long it took."""
        self.close()
        self._stage = name
        self._reset()
        began = time.monotonic()
        try:
            yield
        except BaseException:
            self._end(f"stopped after {duration(time.monotonic() - began)}")
            raise
        self._end(f"done in {duration(time.monotonic() - began)}")

    def reused(self, name: str, where: str) -> None:
        """Says that a stage was not run because its artifact is there already."""
        self.console.print(f"{name}: reused {where}", markup=False)

    def close(self) -> None:
        """Shows the last state once more and takes the bar away; may be called at any time."""
        if self._dirty:
            self._show()
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None
        self._stage = ""

    def _end(self, text: str) -> None:
        name = self._stage
        if self._dirty:
            self._show()
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
        self.console.print(f"{name}: {text}", markup=False)
        self._stage, self._dirty = "", False

    # -- drawing ----------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        if self._now is None:
            return
        done, total, fields = self._now
        self._pace.update(done)
        self._dirty = False
        text = self._text(done, total, fields)
        if not self._live:
            self.console.print(f"{self._stage}: {text}" if self._stage else text, markup=False)
            return
        if self._bar is None:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.fields[stage]}", style="bold"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}", markup=False),
                console=self.console,
                refresh_per_second=4,
                transient=True,
            )
            self._bar.start()
        if self._task is None:
            self._task = self._bar.add_task("", stage=self._stage, text=text, total=total or None)
        self._bar.update(self._task, completed=done, total=total or None, text=text)

    def _text(self, done: float, total: float, fields: dict[str, Any]) -> str:
        rest = dict(fields)
        unit = str(rest.pop("unit", ""))
        parts = [
            f"{quantity(done)}/{quantity(total)} {unit}".rstrip() if total else f"{quantity(done)} {unit}".rstrip()
        ]
        rate = self._pace.rate
        if rate > 0 and not any("tokens_per_s" in name for name in rest):
            parts.append(f"{quantity(rate)} {unit}/s".replace(" /s", "/s"))
        parts += [field_text(name, value) for name, value in rest.items() if value is not None]
        parts.append(duration(time.monotonic() - self._pace.start))
        if rate > 0 and total > done:
            parts.append(f"ETA {duration((total - done) / rate)}")
        return " · ".join(parts)
