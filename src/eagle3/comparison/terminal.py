"""A table for a terminal of any width: whole where it fits, then with fewer columns, then each row in lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 10_000


@dataclass(frozen=True)
class Fitting:
    """Never cuts a word to pieces to make a column fit."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[bool]
    """Columns that stand at their right edge: numbers."""
    bold: Sequence[bool]
    """Rows that stand out."""
    names: int
    """Columns at the left that say which row it is."""
    fewer: int
    """Columns at the left that are shown where there is no room for all."""
    title: str = ""
    rest: str = "--out FILE.csv has all"
    """Where the columns are for which there is no room."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        wide = options.update(max_width=_ANY_WIDTH)
        for count in dict.fromkeys((len(self.headings), self.fewer)):
            table = self._table(count)
            if Measurement.get(console, wide, table).maximum <= options.max_width:
                yield table
                left = self.headings[count:]
                if left:
                    yield Text(f"no room for: {', '.join(left)}; {self.rest}", style="dim")
                return
        yield from self._stacked()

    def _table(self, count: int) -> Table:
        table = Table(box=SIMPLE_HEAD, title=self.title or None, title_justify="left")
        for heading, right in list(zip(self.headings, self.right, strict=True))[:count]:
            table.add_column(heading, justify="right" if right else "left")
        for row, bold in zip(self.rows, self.bold, strict=True):
            table.add_row(*map(Text, row[:count]), style="bold" if bold else "")
        return table

    def _stacked(self) -> Iterator[RenderableType]:
        if self.title:
            yield Text(self.title, style="italic")
        for row, bold in zip(self.rows, self.bold, strict=True):
            if self.names == 1:
                yield Text(row[0], style="bold" if bold else "")
            else:
                told = zip(self.headings[: self.names], row[: self.names], strict=True)
                yield Text(", ".join(f"{name}={value}" for name, value in told), style="bold" if bold else "")
            for heading, cell in list(zip(self.headings, row, strict=True))[self.names :]:
                if cell:
                    yield Text(f"  {heading}: {cell}")
        yield Text("")
