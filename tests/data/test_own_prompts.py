"""Prompts that the target writes itself. A tiny random model writes none: a stand-in for its server gives the ids."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.data.chat_templates import chat, save_style, style_of
from tests.data.test_prepare import Recorder

from eagle3.config.schema import TargetConfig
from eagle3.data.own_prompts import TEMPERATURE, OwnPrompts
from eagle3.data.prompts import Tally
from eagle3.data.tokenize import ConversationTokenizer
from eagle3.errors import ConfigError, DataError
from eagle3.server.client import Client, Completion
from eagle3.server.waves import Waves


def tokenizer_of(style: str, folder: Path) -> ConversationTokenizer:
    save_style(style_of(style), folder)
    target: Any = SimpleNamespace(path=folder, vocab_size=10_000)
    return ConversationTokenizer(target, TargetConfig("t", str(folder)))


@pytest.mark.parametrize("style", ["chatml", "llama3", "deepseek", "gemma", "qwen3", "glm"])
def test_opening_and_end_are_those_of_a_prompt(style: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(style, tmp_path)
    opening, end = tokenizer.user_turn()
    whole = tokenizer.prompt_ids(chat("Hello"))
    text, first = tokenizer.tokenizer.decode(whole), tokenizer.tokenizer.decode(opening)
    # Where the opening ends with a line break, a tokenizer may join the first word to it; the text is the same.
    said = text.removeprefix(first)
    assert said.startswith("Hello" + tokenizer.tokenizer.decode([end]))
    said = tokenizer.tokenizer("Hello", add_special_tokens=False).input_ids
    assert tokenizer.plain_text(said) == "Hello"
    assert tokenizer.plain_text([*said, end]) is None, "special tokens are no text"


@pytest.mark.parametrize("style", ["llama2", "plain"])
def test_a_turn_without_an_end_of_its_own(style: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(style, tmp_path)
    OwnPrompts(tmp_path / "own.jsonl", 0, tokenizer)
    with pytest.raises(ConfigError, match=r"prepare\.own_prompts: .* no special token"):
        OwnPrompts(tmp_path / "own.jsonl", 1, tokenizer)


class StandIn(Client):
    """No server: the texts one after the other, each ended as given. Keeps what was asked."""

    def __init__(self, tokenizer: ConversationTokenizer, said: Sequence[tuple[str, bool]]) -> None:
        super().__init__("http://127.0.0.1:1", 4)
        self.tokenizer, self.said, self.asked = tokenizer, itertools.cycle(said), list[tuple[Any, ...]]()

    async def complete(
        self,
        input_ids: Sequence[int],
        max_new_tokens: int,
        stop_token_ids: Sequence[int] | None = None,
        temperature: float = 0.0,
    ) -> Completion:
        self.asked.append((list(input_ids), list(stop_token_ids or []), temperature))
        await asyncio.sleep(0)
        text, ended = next(self.said)
        ids = self.tokenizer.tokenizer(text, add_special_tokens=False).input_ids
        return Completion([*ids, *self.asked[-1][1][:1]] if ended else ids, "stop" if ended else "length", {})


def write(own: OwnPrompts, client: StandIn) -> Recorder:
    reporter = Recorder()

    async def run() -> None:
        async with client:
            await own.write(client, Waves(2, 0.01), reporter)

    asyncio.run(run())
    return reporter


SAID = [("What is a leek?", True), ("Is it", False), ("What is a leek?", True), (" \n", True), ("Why\nnot?", True)]


def test_distinct_whole_ones_are_kept_over_an_interruption(tmp_path: Path) -> None:
    tokenizer, path = tokenizer_of("chatml", tmp_path), tmp_path / "own.jsonl"
    client = StandIn(tokenizer, SAID)
    reporter = write(OwnPrompts(path, 2, tokenizer), client)
    assert reporter.steps[-1] == (2, 2)
    opening, end = tokenizer.user_turn()
    assert client.asked[0] == (opening, [end, *tokenizer.end_ids], TEMPERATURE)
    with path.open("ab") as file:
        file.write(b'{"prompt": "torn')
    own = OwnPrompts(path, 3, tokenizer)
    assert own.lacking == 1
    write(own, StandIn(tokenizer, [*SAID, ("And a third?", True)]))
    again = OwnPrompts(path, 3, tokenizer)
    assert (again.lacking, again.prompts) == (0, ["What is a leek?", "Why\nnot?", "And a third?"])
    tally = Tally(conversations=7)
    made = again.conversations(tally)
    assert [(c.index, c.where, c.row_id) for c in made][1:] == [
        (8, "own.jsonl:2", "own-000001"),
        (9, "own.jsonl:3", "own-000002"),
    ]
    assert made[1].messages == [{"role": "user", "content": "Why\nnot?"}]
    assert tally.conversations == 10
    assert [json.loads(line)["prompt"] for line in path.read_bytes().splitlines()] == again.prompts


def test_a_target_that_repeats_itself_is_told_so(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("chatml", tmp_path)
    with pytest.raises(DataError, match=r"own_prompts=9: 2 distinct prompts after 200 more tries"):
        write(OwnPrompts(tmp_path / "own.jsonl", 9, tokenizer), StandIn(tokenizer, SAID))
