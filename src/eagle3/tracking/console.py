"""What the person at the terminal sees: one line a stage that moves, and notes above it.

On a terminal a rich progress bar; in a file or a pipe one plain line every ten seconds and one at the end.
Stages call at any rate: a call between two refreshes costs a dictionary update.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from eagle3.metrics import Reporter
from eagle3.units import duration, field_text, quantity

REFRESH_S = 0.2
SEPARATOR = " · "
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
        self.counts: object = None
        """What is counted; another unit or total is another phase of the stage, with a rate of its own."""
        self.done = 0.0
        self.rate = 0.0

    def update(self, done: float, counts: object) -> None:
        now = time.monotonic()
        if counts != self.counts or done < self.done:
            self.counts, self.done, self.time, self.rate = counts, done, now, 0.0
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
        self._display: _Display | None = None
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
        elif self._pace.counts is None:
            self._pace.update(done, (total, fields.get("unit")))

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
        if self._display is not None:
            self._display.stop()
        self._display, self._stage, self._dirty = None, "", False

    def _end(self, text: str) -> None:
        name = self._stage
        self.close()
        self.console.print(f"{name}: {text}", markup=False)

    # -- drawing ----------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        if self._now is None:
            return
        done, total, fields = self._now
        self._pace.update(done, (total, fields.get("unit")))
        self._dirty = False
        course, figures = self._course(done, total, fields), self._figures(fields)
        if self._live:
            if self._display is None:
                self._display = _Display(self.console, self._stage)
            self._display.update(done, total, course, figures)
            return
        text = SEPARATOR.join(part for part in (course, figures) if part)
        self.console.print(f"{self._stage}: {text}" if self._stage else text, markup=False)

    def _course(self, done: float, total: float, fields: dict[str, Any]) -> str:
        """How far, how fast, how long, and when it will be over."""
        unit, rate = str(fields.get("unit", "")), self._pace.rate
        parts = [f"{quantity(done)}{f'/{quantity(total)}' if total else ''} {unit}".rstrip()]
        if rate > 0 and "tokens_per_s" not in fields:
            parts.append(f"{quantity(rate)} {unit}/s".replace(" /s", "/s"))
        parts.append(duration(time.monotonic() - self._pace.start))
        if rate > 0 and total > done:
            parts.append(f"ETA {duration((total - done) / rate)}")
        return SEPARATOR.join(parts)

    def _figures(self, fields: dict[str, Any]) -> str:
        shown = ((name, value) for name, value in fields.items() if name != "unit" and value is not None)
        return SEPARATOR.join(field_text(name, value) for name, value in shown)


class _Display:
    """Two lines at the bottom of the terminal: the bar, and the stage's figures."""

    def __init__(self, console: Console, stage: str) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[course]}", markup=False),
            console=console,
            expand=True,
        )
        self._task: TaskID = self._bar.add_task(stage, total=None, course="")
        self._figures = Text(no_wrap=True, overflow="ellipsis", style="dim")
        self._live = Live(Group(self._bar, self._figures), console=console, refresh_per_second=5, transient=True)
        self._live.start()

    def update(self, done: float, total: float, course: str, figures: str) -> None:
        self._bar.update(self._task, completed=done, total=total or None, course=course)
        self._figures.plain = f"  {figures}" if figures else ""

    def stop(self) -> None:
        self._live.refresh()
        self._live.stop()
