"""The file that prepare leaves is known by its content, so that a damaged one is made again."""

from pathlib import Path

import pytest

from eagle3.data.prompts_file import NAME, SUMMARY, changed, write_summary


def test_a_file_that_is_not_as_it_was_left_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"tokens")
    write_summary(tmp_path, {"tokens": 6})
    assert changed(tmp_path) is None
    (tmp_path / NAME).write_bytes(b"tokenz")
    assert "has changed" in str(changed(tmp_path))
    (tmp_path / NAME).unlink()
    assert "is gone" in str(changed(tmp_path))


@pytest.mark.parametrize("summary", [None, "{", "{}"])
def test_without_a_known_content_the_file_is_not_trusted(tmp_path: Path, summary: str | None) -> None:
    (tmp_path / NAME).write_bytes(b"tokens")
    if summary is not None:
        (tmp_path / SUMMARY).write_text(summary)
    assert "has changed" in str(changed(tmp_path))
