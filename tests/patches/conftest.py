"""The plugin is no part of the package: it is put on the path here as it is on the server's."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

PATCHES = Path(__file__).resolve().parents[2] / "patches"
sys.path.append(str(PATCHES / "hs_dump"))


@pytest.fixture(autouse=True)
def _writers_end() -> Iterator[None]:
    """A server's writers end with it. Here that is pytest, and tests of other files look at what is left in it."""
    before = set(psutil.Process().children())
    yield
    for child in set(psutil.Process().children()) - before:
        with suppress(psutil.NoSuchProcess):
            if "eagle3_hs_dump.writing" in child.cmdline():
                child.kill()
