"""Which answers are made anew, and what is kept of them when a run is broken off. (The serving itself: tests/e2e.)"""

import json
from pathlib import Path

import pytest

from eagle3.data.answers import Answer, Journal
from eagle3.data.prompts import Conversation
from eagle3.data.regenerate import turns_to_answer


def messages(*pairs: str) -> list[dict[str, str]]:
    """`u:Hi` as {"role": "user", "content": "Hi"}."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[pair[0]], "content": pair[2:]} for pair in pairs]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (["u:1", "a:x"], [["u:1"]]),
        (["u:1"], [["u:1"]]),
        (["s:be", "u:1", "a:", "u:2"], [["s:be", "u:1"], ["u:2"]]),
        (["u:1", "u:2", "a:x", "a:y", "t:3", "a:z"], [["u:1", "u:2"], ["t:3"]]),
        (["a:greeting", "u:1", "a:x"], [["u:1"]]),
        (["s:be", "a:greeting", "u:1"], [["s:be", "u:1"]]),
        (["s:be"], []),
        (["a:x"], []),
    ],
)
def test_turns_to_answer(given: list[str], asked: list[list[str]]) -> None:
    assert turns_to_answer(messages(*given)) == [messages(*turn) for turn in asked]


def conversation(index: int, *pairs: str) -> Conversation:
    return Conversation(index, f"a.jsonl:{index}", messages(*pairs))


HELLO, MORE = Answer("Hello ✓\n", 3, "stop"), Answer("More", 1, "length")


def test_journal_is_taken_up_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    conversations = [conversation(0, "u:Hi", "a:", "u:More"), conversation(4, "u:Yo")]
    with Journal(path, conversations) as journal:
        journal.add(4, MORE)
        journal.add(0, HELLO)
        journal.add(0, MORE)
    with Journal(path, conversations) as again:
        assert again.answers == {0: [HELLO, MORE], 4: [MORE]}


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_torn_line_costs_that_answer_only(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "answers.jsonl"
    conversations = [conversation(0, "u:Hi", "a:", "u:More")]
    with Journal(path, conversations) as journal:
        journal.add(0, HELLO)
        journal.add(0, MORE)
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path, conversations) as again:
        assert again.answers[0] == [HELLO]
        again.add(0, MORE)
    with Journal(path, conversations) as third:
        assert third.answers[0] == [HELLO, MORE]


def test_answers_to_other_prompts_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Journal(path, [conversation(0, "u:Hi"), conversation(1, "u:Yo")]) as journal:
        journal.add(0, HELLO)
        journal.add(1, MORE)
    path.open("ab").write(b'"a line that is JSON"\n[1]\n')
    whole = path.read_bytes().splitlines(keepends=True)
    with Journal(path, [conversation(0, "u:Hi!"), conversation(1, "u:Yo", "a:was different")]) as other:
        assert other.answers == {0: [], 1: [MORE]}
    assert path.read_bytes() == whole[1]


def test_a_changed_answer_is_asked_again_and_those_after_it(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    conversations = [conversation(0, "u:Hi", "a:", "u:More"), conversation(1, "u:Yo")]
    with Journal(path, conversations) as journal:
        journal.add(0, HELLO)
        journal.add(0, MORE)
        journal.add(1, MORE)
    path.write_bytes(path.read_bytes().replace(b"Hello", b"Jello"))
    with Journal(path, conversations) as again:
        assert again.answers == {0: [], 1: [MORE]}


def test_journal_is_plain_json_lines(tmp_path: Path) -> None:
    with Journal(tmp_path / "answers.jsonl", [conversation(0, "u:Hi")]) as journal:
        journal.add(0, HELLO)
    row = json.loads((tmp_path / "answers.jsonl").read_text(encoding="utf-8"))
    assert {key: row[key] for key in ("index", "turn", "text", "tokens", "finish")} == {
        "index": 0,
        "turn": 0,
        "text": "Hello ✓\n",
        "tokens": 3,
        "finish": "stop",
    }
