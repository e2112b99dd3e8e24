"""What is said of bytes that are free, or too few, and of a folder that can't be written."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3.files.disk import GIB, gib, require_writable


@pytest.mark.parametrize(
    ("n", "told"),
    [
        (924 * GIB, "924 GiB"),
        (GIB + GIB // 2, "1.50 GiB"),
        (GIB // 10, "0.10 GiB"),
        (GIB // 256, "4.00 MiB"),
        (100_000, "0.10 MiB"),
        (0, "0.00 MiB"),
    ],
)
def test_little_is_not_none(n: int, told: str) -> None:
    assert gib(n) == told


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may read and nobody write; this process is not root as long as it is there."""
    with tempfile.TemporaryDirectory() as name:
        folder, user = Path(name), os.geteuid()
        folder.chmod(0o555)
        if user == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)
            folder.chmod(0o755)


def test_a_folder_that_is_not_writable_is_told_as_making_something_in_it_would(shared: Path) -> None:
    for folder in (shared, shared / "runs" / "mine"):
        with pytest.raises(OSError, match="Permission denied") as told:
            require_writable(folder)
        with pytest.raises(OSError, match="Permission denied") as made:
            (folder if folder != shared else folder / "x").mkdir(parents=True)
        assert told.value.errno == made.value.errno == errno.EACCES
        assert told.value.filename == str(shared)
    assert not list(shared.iterdir())


def test_a_file_in_the_place_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        require_writable(tmp_path / "file" / "below")
    require_writable(tmp_path / "not" / "there")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
