"""`eagle3 compare PATH...`: runs and sweeps beside each other."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from eagle3.comparison import Comparison, compare
from eagle3.comparison.render import csv_text, markdown, text
from eagle3.errors import EXIT_DONE, ConfigError, Eagle3Error


def _page(comparison: Comparison) -> str:
    from eagle3.comparison.page import page  # matplotlib takes a second

    return page(comparison)


_WRITERS: dict[str, Callable[[Comparison], str]] = {
    ".html": _page,
    ".md": markdown,
    ".csv": csv_text,
}


def run_compare(
    paths: Sequence[Path], where: Sequence[str], order: str | None, reverse: bool, out: Sequence[Path]
) -> int:
    """Prints the table, and writes each file of `out` in the format that its name ends in.

    Raises:
        ConfigError: an ending that is none of .html, .md, .csv; a path with nothing there; a key that no run has.
        DataError: no finished run is among the paths.
    """
    for path in out:
        if path.suffix not in _WRITERS:
            raise ConfigError(f"--out {path}: ends in none of {', '.join(_WRITERS)}")
    comparison = compare(paths, where, order, reverse)
    width = None if sys.stdout.isatty() else 200
    Console(file=sys.stdout, highlight=False, width=width).print(text(comparison))
    for path in out:
        written = _WRITERS[path.suffix](comparison)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written, encoding="utf-8")
        except OSError as error:
            raise Eagle3Error(f"{path} can't be written ({error.strerror})") from error
        print(f"written: {path}")
    return EXIT_DONE
