"""Prompt sets: what a file of prompts may be, what is told of one that is none, and what sets are called."""

import json
from pathlib import Path

import pytest

from eagle3.config.evaluating import EvaluateConfig
from eagle3.config.schema import Config, DatasetConfig, TargetConfig
from eagle3.errors import ConfigError, DataError
from eagle3.evaluation.sets import SHIPPED, longest_asked, read_set, require_sets


def test_whatever_json_allows_is_read(tmp_path: Path) -> None:
    """A byte order mark, separators that are no line's end in JSON, blank lines, Windows' ends."""
    file = tmp_path / "mine.jsonl"
    texts = ["one\N{LINE SEPARATOR}two", "one\N{NEXT LINE}two", "plain", "form\ffeed"]
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts[:3]]
    lines += ["", json.dumps({"id": "last", "messages": [{"role": "user", "content": texts[3]}]})]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    found = read_set(file)
    assert [messages[-1]["content"] for _, messages in found] == texts
    assert [key for key, _ in found] == ["1", "2", "3", "last"]


@pytest.mark.parametrize("content", ["null", "7", "[1]", '["a"]', '{"a": 1}', '""', '"  \\n"'])
def test_what_is_no_text_is_not_asked(tmp_path: Path, content: str) -> None:
    for row in (f'{{"prompt": {content}}}', f'{{"messages": [{{"role": "user", "content": {content}}}]}}'):
        file = tmp_path / "mine.jsonl"
        file.write_text(f'{{"prompt": "fine"}}\n\n{row}\n')
        with pytest.raises(DataError, match=r"mine\.jsonl:3: "):
            read_set(file)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{prompt: 1}", "not JSON: Expecting property name enclosed in double quotes at character 2 of the line"),
        ('["a"]', "not an object"),
        ('{"question": "a"}', "its keys are question"),
        ('{"messages": []}', "no messages"),
        ('{"prompt": null}', "`prompt` is null, not a string"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "asks nothing"),
        ('{"id": "x", "prompt": "a"}', "its id 'x' is that of mine.jsonl:1"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, row: str, says: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(f'{{"id": "x", "prompt": "fine"}}\n{row}\n')
    with pytest.raises(DataError) as raised:
        read_set(file)
    assert f"{file}:2: " in str(raised.value)
    assert says in str(raised.value)
    assert "line 1" not in str(raised.value)


def test_an_empty_file_is_no_set(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("\n")
    with pytest.raises(DataError, match="no prompt is in it"):
        read_set(tmp_path / "mine.jsonl")


def test_the_shipped_sets_are_right() -> None:
    assert sum(len(read_set(file)) for file in SHIPPED.glob("*.jsonl")) == 72


def test_no_two_sets_have_one_name(tmp_path: Path) -> None:
    for name in ("a/mine", "b/mine", "held_out", "chat", "untrained"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "a"}\n')
    require_sets(["held_out", "chat", str(tmp_path / "a/mine.jsonl")])
    for names in (["held_out"], ["chat"], ["untrained"], ["a/mine", "b/mine"]):
        with pytest.raises(ConfigError, match=r"evaluate\.prompts: .*called.*; rename"):
            require_sets([str(tmp_path / f"{name}.jsonl") for name in names])


@pytest.mark.parametrize("kind", ["chain", "served"])
def test_an_answer_that_leaves_no_room_is_refused(kind: str) -> None:
    cfg = Config(name="t", target=TargetConfig("t", "p"), dataset=DatasetConfig("d", "d.jsonl"))
    cfg.evaluate = EvaluateConfig(kind=kind, max_new_tokens=100)
    assert longest_asked(cfg, 200) == 93
    with pytest.raises(ConfigError, match=r"evaluate\.max_new_tokens: 100 leaves no room"):
        longest_asked(cfg, 107)
    cfg.server.flags.serving["context_length"] = 120
    assert longest_asked(cfg, 200) == (13 if kind == "served" else 93)
