"""Conversations to token ids and loss mask, by the target's tokenizer and chat template."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagle3.config.schema import TargetConfig
from eagle3.data.offsets import IntArray, OffsetEncoder
from eagle3.data.prompts import Message
from eagle3.data.turns import Span, Turns, UnmaskableError
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.target.info import TargetInfo

VOCABULARY = ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "vocab.json", "merges.txt")


@dataclass(frozen=True)
class Tokenized:
    input_ids: IntArray
    """[T] int32."""
    loss_mask: IntArray
    """[T] uint8: 1 on the tokens of assistant turns, with the token that ends each."""


class ConversationTokenizer:
    """The target's tokenizer and chat template, ready for conversations."""

    def __init__(self, target: TargetInfo, cfg: TargetConfig) -> None:
        """
        Raises:
            ConfigError: no chat template, or `target.chat_template` is not one.
            Eagle3Error: the folder has no tokenizer that transformers loads.
        """
        self.tokenizer = load_tokenizer(target, cfg.trust_remote_code)
        self.template = _template(self.tokenizer, cfg.chat_template)
        self.end_ids = _end_ids(self.tokenizer, target.path)
        """Ids at which the model stops."""
        self._vocab_size = target.vocab_size
        added = self.tokenizer.added_tokens_decoder.items()
        self._special = {*self.tokenizer.all_special_ids, *(i for i, token in added if token.special)}
        self._turns = Turns(self.tokenizer, self.template, self.tokenizer.convert_ids_to_tokens(self.end_ids))
        self._encode = OffsetEncoder(self.tokenizer)

    @property
    def template_sha256(self) -> str:
        return hashlib.sha256(self.template.encode()).hexdigest()

    def __call__(self, conversations: list[list[Message]]) -> list[Tokenized | UnmaskableError]:
        """Each conversation tokenised as a whole, in time linear in its length; or why its turns can't be told apart.

        Raises:
            DataError: a tokenizer whose tokens can't be placed in the text.
            Eagle3Error: ids outside of the model's vocabulary.
        """
        rendered: list[tuple[str, list[Span]] | UnmaskableError] = []
        for messages in conversations:
            try:
                rendered.append(self._turns(messages))
            except UnmaskableError as error:
                rendered.append(error)
        encoded = iter(self._encode([item[0] for item in rendered if isinstance(item, tuple)]))
        return [self._masked(*next(encoded), item[1]) if isinstance(item, tuple) else item for item in rendered]

    def _masked(self, ids: IntArray, starts: IntArray, spans: list[Span]) -> Tokenized:
        if len(ids) and int(ids.max()) >= self._vocab_size:
            raise Eagle3Error(
                f"the target's tokenizer gives id {ids.max()}, but its model has {self._vocab_size} tokens: "
                "they do not belong together. Fetch the target's folder again."
            )
        return Tokenized(ids, mask_of(starts, spans))

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        """What is sent for the next answer: the conversation so far and the generation prompt.

        Raises UnmaskableError where the template refuses the conversation.
        """
        [(ids, _)] = self._encode([self._turns.prompt(messages)])
        return ids.tolist()

    def user_turn(self) -> tuple[list[int], int]:
        """(ids of a conversation up to a user's first words, the id that ends the user's turn).

        Raises ConfigError where the template ends it with no token of its own.
        """
        words = "words-of-a-user"
        opening, _, rest = self._turns.prompt([{"role": "user", "content": words}]).partition(words)
        (ids, _), (after, _) = self._encode([opening, rest])
        if not rest or words in rest or not len(after) or int(after[0]) not in self._special:
            raise ConfigError(
                "prepare.own_prompts: the target's chat template ends a user's turn with no special token, so the "
                "target can't write one; set it to 0 and give prompts in dataset.path"
            )
        return ids.tolist(), int(after[0])

    def plain_text(self, ids: list[int]) -> str | None:
        """None where a special token, or half of a character, is among them."""
        text = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return None if self._special.intersection(ids) or "\N{REPLACEMENT CHARACTER}" in text else text

    def answer(self, output_ids: list[int]) -> str:
        """The text of a generated answer, without the token that ended it or half of a character at its end."""
        kept = output_ids[:-1] if output_ids and output_ids[-1] in self.end_ids else output_ids
        text = self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text.rstrip("\N{REPLACEMENT CHARACTER}")


def mask_of(starts: IntArray, spans: list[Span]) -> IntArray:
    """[T] uint8: 1 for each token that begins inside one of the ascending, disjoint `spans` of characters.

    A token that begins in the template's text and reaches into the answer is not the model's: what it continued ends
    in the middle of that token.
    """
    mask = np.zeros(len(starts), np.uint8)
    if spans and len(starts):
        begins = np.array([start for start, _ in spans])
        ends = np.array([end for _, end in spans])
        turn = np.searchsorted(begins, starts, side="right") - 1
        mask[:] = (turn >= 0) & (starts < ends[np.maximum(turn, 0)])
    return mask


def tokenizer_sha256(folder: Path) -> str:
    """One hash over the files that determine how text becomes ids."""
    files = {folder / name for name in VOCABULARY} | {
        p for kind in ("*.model", "*.tiktoken") for p in folder.glob(kind)
    }
    digest = hashlib.sha256()
    for file in sorted(file for file in files if file.is_file()):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def load_tokenizer(target: TargetInfo, trust_remote_code: bool) -> Any:
    """The target's own, as transformers loads it. Raises Eagle3Error where there is none that it loads."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(target.path, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises anything here, down to the tokenizer's own parser's panics
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Eagle3Error(
            f"{target.path}: its tokenizer can't be loaded ({first}). The folder needs tokenizer.json and "
            "tokenizer_config.json; one that brings its own code needs target.trust_remote_code=true."
        ) from error


def _template(tokenizer: Any, configured: str | None) -> str:
    if configured is not None:
        try:
            return Path(configured).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"target.chat_template={configured!r}: can't be read ({error}).") from error
    try:
        return tokenizer.get_chat_template()
    except ValueError as error:
        raise ConfigError(
            "target.chat_template: the target's tokenizer has no chat template (a base model?). "
            "Set it to a Jinja file with the template that the model was trained with."
        ) from error


def _end_ids(tokenizer: Any, folder: Path) -> list[int]:
    """The tokenizer's end of sequence, and those of generation_config.json, where a model has several."""
    ids = [tokenizer.eos_token_id]
    for name in ("generation_config.json", "config.json"):
        try:
            named = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        ids += named if isinstance(named, list) else [named]
    return list(dict.fromkeys(i for i in ids if isinstance(i, int)))
