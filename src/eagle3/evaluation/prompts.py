"""What a drafter is asked: conversations held out from training, and prompt sets. None that it was trained on."""

import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3.config import Config
from eagle3.data.prompts import Message
from eagle3.data.tokenize import ConversationTokenizer
from eagle3.data.turns import UnmaskableError
from eagle3.errors import DataError
from eagle3.evaluation.sets import HELD_OUT, longest_asked, prompt_file, read_set, require_sets, set_name
from eagle3.evaluation.trained_on import Asked, TrainedOn, key_of, not_known, trained_on
from eagle3.metrics import Reporter
from eagle3.target.info import TargetInfo
from eagle3.units import counted


@dataclass(frozen=True)
class Prompt:
    set: str
    key: str
    """Names it in its set."""
    input_ids: list[int]

    @property
    def asked(self) -> str:
        """A name of its tokens: 16 hexadecimal digits."""
        return hashlib.sha256(key_of(self.input_ids)).hexdigest()[:16]


def ids_of(prompts: Sequence[Prompt]) -> np.ndarray:
    """`[n]` int64: the names of their tokens, as numbers."""
    return np.array([int(prompt.asked, 16) for prompt in prompts], np.uint64).astype(np.int64)


def until_end(output_ids: list[int], end_ids: Container[int]) -> list[int]:
    """An answer up to its first end token."""
    end = next((i + 1 for i, token in enumerate(output_ids) if token in end_ids), len(output_ids))
    return output_ids[:end]


@dataclass(frozen=True)
class PromptSets:
    prompts: list[Prompt]
    end_ids: list[int]
    """Tokens that end an answer."""
    trained_on: int
    """Left out, because the drafter has seen them."""
    training_known: bool = True
    """Whether that could be told: else some that it has seen may be among them."""
    too_long: int = 0
    """Left out, because the target has no room for them and an answer."""

    def unasked_figures(self) -> dict[str, int]:
        """Of an evaluation's summary: where some were too long, how many."""
        return {"eval/too_long": self.too_long} if self.too_long else {}


def load_prompts(cfg: Config, target: TargetInfo, prepared: Path | None, reporter: Reporter) -> PromptSets:
    """All sets of `evaluate.prompts`, at most `evaluate.limit` of each.

    Args:
        prepared: folder of prepare, whose held-out conversations are asked. Where `evaluate.drafter` names no drafter
            it is also what the drafter was trained on; None where that is not known.

    Raises:
        ConfigError: a set is not there, or there is no room for an answer. DataError: a file is no prompt set, or
            nothing is left of all.
    """
    wanted = cfg.evaluate
    require_sets(wanted.prompts)
    longest = longest_asked(cfg, target.context_length)
    tokenizer = ConversationTokenizer(target, cfg.target)
    asked = Asked.of(prepared) if prepared is not None else Asked({}, frozenset())
    training = trained_on(wanted.drafter, prepared)
    seen = _seen(training, prepared, asked)
    if training.folder is None:
        reporter.note(not_known(training))
    found: list[Prompt] = []
    left_out = too_long = 0
    for name in wanted.prompts:
        rows = list(asked.held_out.items()) if name == HELD_OUT else _tokenized(prompt_file(name), tokenizer)
        kept = [row for row in rows if key_of(row[1]) not in seen]
        left_out += len(rows) - len(kept)
        fitting = [Prompt(set_name(name), key, ids) for key, ids in kept if len(ids) <= longest]
        if longer := len(kept) - len(fitting):
            too_long += longer
            told = f"{counted(longer, 'prompt')} left out: too long for the target's context"
            reporter.note(f"{name}: {told}, with an answer of evaluate.max_new_tokens")
        found += fitting[: wanted.limit]
    if left_out:
        reporter.note(f"{counted(left_out, 'prompt')} left out, which the drafter was trained on")
    if not found:
        raise DataError("evaluate.prompts: nothing is left to ask; name other sets, or lower evaluate.max_new_tokens")
    return PromptSets(found, list(tokenizer.end_ids), left_out, training.folder is not None, too_long)


def _seen(training: TrainedOn, prepared: Path | None, asked: Asked) -> frozenset[bytes]:
    if training.folder is None:
        return frozenset()
    return asked.trained if training.folder == prepared else Asked.of(training.folder).trained


def _tokenized(path: Path, tokenizer: ConversationTokenizer) -> list[tuple[str, list[int]]]:
    return [(key, _ids(path, key, messages, tokenizer)) for key, messages in read_set(path)]


def _ids(path: Path, key: str, messages: list[Message], tokenizer: ConversationTokenizer) -> list[int]:
    try:
        return tokenizer.prompt_ids(messages)
    except UnmaskableError as error:
        raise DataError(f"evaluate.prompts: {path}: {key}: the target's chat template refuses it ({error})") from error
