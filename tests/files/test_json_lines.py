"""A journal of checked lines: what a kill, a full disk or a flipped digit leaves of it."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from eagle3.errors import DataError
from eagle3.files.json_lines import JsonLines, rows_of, sealed, unsealed

ROWS: list[dict[str, Any]] = [
    {"n": 10, "text": 'Hello ✓\n "quoted", "crc": "01234567"}'},
    {"n": 21, "of": [1.5, None]},
    {"n": 32, "crc": "my own"},
]


def written(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = JsonLines(path)
    for row in rows:
        lines.add(row)
    lines.close()


def read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    JsonLines(path, lambda row: found.append(row) is None).close()
    return found


def test_what_was_added_is_there_and_each_line_is_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert read(path) == []
    written(path, ROWS[:2])
    written(path, ROWS[2:])
    assert read(path) == ROWS
    assert rows_of(path) == ROWS
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [10, 21, 32]


def test_no_changed_byte_is_taken() -> None:
    for row in ROWS:
        line = sealed(row)
        assert unsealed(line) == row
        for at in range(len(line)):
            for bit in range(8):
                changed = bytearray(line)
                changed[at] ^= 1 << bit
                assert unsealed(bytes(changed)) in (None, row), (at, bit)  # a capital digit of the checksum is the same


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_half_a_line_is_cut_off_without_writing_the_rest_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.jsonl"
    written(path, ROWS)
    inode = path.stat().st_ino
    path.write_bytes(path.read_bytes()[:-cut])
    assert read(path) == ROWS[:2]
    written(path, ROWS[2:])
    assert path.read_bytes() == b"".join(map(sealed, ROWS))
    assert path.stat().st_ino == inode


def test_lines_that_do_not_count_are_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first, second, third = map(sealed, ROWS)
    path.write_bytes(first + second.replace(b"21", b"22") + b'{"n": 7}\n"JSON"\n\n' + third)
    assert read(path) == [ROWS[0], ROWS[2]]
    assert path.read_bytes() == first + third
    JsonLines(path, lambda row: row["n"] > 10).close()
    assert path.read_bytes() == third


def test_a_disk_that_refuses_is_told_and_what_was_whole_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = JsonLines(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        lines.add(ROWS[1])
        with pytest.raises(DataError, match=r"a\.jsonl could not be written"):
            lines.add({"text": "long" * 100})
        lines.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.stat().st_size == 100, "half a line"
    assert read(path) == [ROWS[1]]
    with pytest.raises(DataError, match="folder writable"):
        JsonLines(tmp_path / "nowhere" / "a.jsonl")
