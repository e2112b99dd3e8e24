"""Rows of every accepted form are read; a row that is none is reported with its line and why, and moves no other."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset

from eagle3.config.schema import DatasetConfig
from eagle3.data.prompts import EARLY_ROWS, Conversation, Tally, read_conversations
from eagle3.errors import ConfigError, DataError

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


def read(path: Path | str, **options: Any) -> tuple[list[Conversation], Tally]:
    tally = Tally()
    cfg = DatasetConfig("test", str(path), **{"bad_rows": 0.9, **options})
    return list(read_conversations(cfg, tally)), tally


def write(path: Path, *rows: Any) -> Path:
    """Objects as JSON; bytes as they are."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_both_forms(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.jsonl", GOOD, {"prompt": "2+2?", "response": "4"}, {"prompt": "no answer yet", "id": "x"}
    )
    conversations, tally = read(file)
    assert [c.messages for c in conversations] == [
        GOOD["messages"],
        [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}],
        [{"role": "user", "content": "no answer yet"}],
    ]
    assert [c.row_id for c in conversations] == [None, None, "x"]
    assert (tally.conversations, tally.bad, tally.read_bytes) == (3, 0, file.stat().st_size)


def test_bad_rows_are_told_and_move_no_other(tmp_path: Path) -> None:
    rows = [
        GOOD,
        b"{broken",
        b"",  # an empty line is no row, but counts as a line
        b'{"prompt": "caf\xe9"}',
        {"text": "hi"},
        {"messages": []},
        {"messages": [{"role": "assistent", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}]},
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]},
        b'{"prompt": "\\ud83d"}',
        ["a", "list"],
        b"[" * 100_000,
        {"prompt": "last", "response": "one"},
    ]
    conversations, tally = read(write(tmp_path / "a.jsonl", *rows))
    assert [(c.index, c.where) for c in conversations] == [(0, "a.jsonl:1"), (12, "a.jsonl:14")]
    assert tally.conversations == 13
    told = {problem["line"]: problem["why"] for problem in tally.problems}
    assert told["a.jsonl:2"].startswith("not JSON: Expecting property name")
    assert told["a.jsonl:4"] == "not UTF-8: byte 16 of the line"
    assert "its keys are text" in told["a.jsonl:5"]
    assert "not a list with something in it" in told["a.jsonl:6"]
    assert "message 0 has role 'assistent'" in told["a.jsonl:7"]
    assert "message 0 is int, not a string" in told["a.jsonl:8"]
    assert "parts that are not text" in told["a.jsonl:9"]
    assert told["a.jsonl:10"].startswith("tool_calls not supported: message 0")
    assert "surrogate" in told["a.jsonl:11"]
    assert "one object a line" in told["a.jsonl:12"]
    assert told["a.jsonl:13"].startswith("not JSON")
    assert tally.skipped == {
        "not JSON": 2,
        "not UTF-8": 1,
        "no messages": 2,
        "unknown role": 1,
        "not text": 2,
        "tool_calls not supported": 1,
        "not Unicode": 1,
        "not an object": 1,
    }


def test_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"prompt": "a"}\r\n{"prompt": "b"}')
    assert [c.messages[0]["content"] for c in read(tmp_path / "a.jsonl")[0]] == ["a", "b"]


def test_text_in_parts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    [conversation], _ = read(write(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": parts}]}))
    assert conversation.messages == [{"role": "user", "content": "Hi there"}]


def test_duplicates_are_left_out_and_counted(tmp_path: Path) -> None:
    other = {"prompt": "Hi", "response": "Good day"}
    conversations, tally = read(write(tmp_path / "a.jsonl", GOOD, other, GOOD, {**GOOD, "id": 7}))
    assert [c.index for c in conversations] == [0, 1]
    assert tally.skipped == {"duplicate": 2}
    assert conversations[0].prompt_key == conversations[1].prompt_key


def test_limit_counts_what_is_given(tmp_path: Path) -> None:
    rows = [GOOD, b"{", *({"prompt": str(i)} for i in range(5))]
    conversations, tally = read(write(tmp_path / "a.jsonl", *rows), limit=3)
    assert [c.index for c in conversations] == [0, 2, 3]
    assert tally.conversations == 4, "reading ends there"


def test_too_many_bad_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", GOOD, b"{", {"prompt": "x"}, {"prompt": "y"})
    with pytest.raises(DataError, match=r"(?s)1 of 4 rows.*dataset\.bad_rows=0\.2.*a\.jsonl:2: not JSON"):
        read(file, bad_rows=0.2)
    assert len(read(file, bad_rows=0.25)[0]) == 3


def test_no_good_row(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'(?s)none of 2 rows.*a\.jsonl:1.*"messages"'):
        read(write(tmp_path / "a.jsonl", {"text": "a"}, {"text": "b"}))
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="none of 0 rows"):
        read(tmp_path / "empty.jsonl")


def test_a_file_of_another_kind_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("text\n" * (EARLY_ROWS + 500))
    tally = Tally()
    with pytest.raises(DataError, match="none of 1,000 rows"):
        list(read_conversations(DatasetConfig("t", str(file)), tally))
    assert len(tally.problems) == 100


def test_folder_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "b.jsonl", {"prompt": "2"}, {"prompt": "3"})
    write(tmp_path / "a.jsonl", {"prompt": "1"})
    write(tmp_path / "sub" / "c.jsonl", {"prompt": "4"})
    (tmp_path / "README.md").write_text("not a dataset")
    rows = [{"prompt": "5", "response": "five", "messages": None}, {"prompt": "6", "response": None, "messages": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "sub" / "d.parquet")
    conversations, tally = read(tmp_path)
    assert [c.messages[0]["content"] for c in conversations] == list("123456")
    assert [c.index for c in conversations] == list(range(6))
    assert [c.where for c in conversations][2:5] == ["b.jsonl:2", "sub/c.jsonl:1", "sub/d.parquet row 1"]
    assert conversations[4].messages[1]["content"] == "five"
    assert tally.read_bytes == tally.total_bytes


def test_broken_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="not a readable parquet"):
        read(tmp_path)


def test_folder_saved_by_the_datasets_library(tmp_path: Path) -> None:
    Dataset.from_list([GOOD, {"messages": [{"role": "user", "content": "B"}]}]).save_to_disk(str(tmp_path / "saved"))
    conversations, _ = read(tmp_path / "saved")
    assert [len(c.messages) for c in conversations] == [2, 1]
    assert conversations[1].where.endswith("[train] row 2")


@pytest.mark.parametrize("path", ["missing.jsonl", "/nowhere/at/all", "./owner/name"])
def test_no_such_path(path: str) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.path=.*no such file or folder"):
        read(path)


def test_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \*\.jsonl or \*\.parquet"):
        read(tmp_path)


def test_hub_dataset_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"dataset\.path='nobody/nothing-of-that-name', split 'train': can't be read"):
        read("nobody/nothing-of-that-name")
