"""Prompts that the target writes itself: where a conversation holds nothing but the opening of the user's turn, an
instruction-tuned model goes on with what users asked in its own training (Xu et al. 2024, "Magpie: Alignment data
synthesis from scratch by prompting aligned LLMs with nothing").

Kept in a file, a line each, in the order they came: an interruption costs those in flight.
"""

import itertools
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from eagle3.data.prompts import Conversation, Tally
from eagle3.data.tokenize import ConversationTokenizer
from eagle3.errors import DataError
from eagle3.files.json_lines import JsonLines
from eagle3.metrics import Reporter
from eagle3.server.client import Client
from eagle3.server.waves import Waves

TEMPERATURE = 0.9
"""Lower repeats itself, higher writes nonsense."""
LONGEST = 256
"""Tokens; a prompt that goes on is dropped."""
TRIES = 4
"""For each prompt wanted; a target that can't write users' turns is told apart from one that is unlucky."""
TRIES_AT_LEAST = 200


class OwnPrompts:
    """`prompts` grows to `wanted` distinct ones."""

    def __init__(self, path: Path, wanted: int, tokenizer: ConversationTokenizer) -> None:
        """Takes up what an earlier run left.

        Raises:
            ConfigError: the template does not end a user's turn.
            DataError: the file can't be written.
        """
        self.path, self.wanted = path, wanted
        self.prompts: list[str] = []
        self.tokens = 0
        """Of those written by this run."""
        self._tokenizer = tokenizer
        self._opening, self._end = tokenizer.user_turn() if wanted else ([], 0)
        if wanted:
            JsonLines(path, self._take).close()
        self._seen = set(self.prompts)

    def _take(self, row: dict[str, Any]) -> bool:
        self.prompts.append(row["prompt"])
        return True

    @property
    def lacking(self) -> int:
        return self.wanted - len(self.prompts)

    async def write(self, client: Client, waves: Waves, reporter: Reporter) -> None:
        """Asks until there are enough.

        Raises:
            DataError: too few of them are distinct and whole, or the disk refuses.
            ServerError: of the client.
        """
        began, tries, most = time.monotonic(), 0, max(TRIES * self.lacking, TRIES_AT_LEAST)

        async def ask() -> list[int]:
            await waves.enter()
            done = await client.complete(self._opening, LONGEST, [self._end, *self._tokenizer.end_ids], TEMPERATURE)
            return done.output_ids

        with closing(JsonLines(self.path)) as file:
            async for _, ids in client.run((number, ask) for number in itertools.count()):
                tries += 1
                self.tokens += len(ids)
                if (prompt := self._text(ids)) is not None:
                    file.add({"prompt": prompt})
                    self._seen.add(prompt)
                    self.prompts.append(prompt)
                rate = self.tokens / max(time.monotonic() - began, 1e-9)
                reporter.progress(len(self.prompts), self.wanted, unit="own prompts", tokens_per_s=rate)
                if not self.lacking:
                    return
                if tries >= most:
                    raise DataError(
                        f"prepare.own_prompts={self.wanted}: {len(self.prompts):,} distinct prompts after {tries:,} "
                        f"more tries; the others were empty, repeated, or longer than {LONGEST} tokens. The target "
                        "does not write users' turns well enough: give a smaller number, or a dataset with more prompts"
                    )

    def _text(self, ids: list[int]) -> str | None:
        """A new prompt, whole and of text alone; else None."""
        if not ids or ids[-1] != self._end:
            return None
        text = self._tokenizer.plain_text(ids[:-1])
        return None if text is None or not text.strip() or text in self._seen else text

    def conversations(self, tally: Tally) -> list[Conversation]:
        """After those that `tally` has counted, which then counts these too."""
        found = []
        for number, prompt in enumerate(self.prompts[: self.wanted]):
            messages = [{"role": "user", "content": prompt}]
            where = f"{self.path.name}:{number + 1}"
            found.append(Conversation(tally.conversations, where, messages, f"own-{number:06d}"))
            tally.conversations += 1
        return found
