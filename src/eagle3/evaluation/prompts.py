"""What a drafter is asked: conversations held out from training, and prompt sets. None that it was trained on."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3.config import Config
from eagle3.data.placement import Prompts, read_prompts
from eagle3.data.tokenize import ConversationTokenizer
from eagle3.errors import DataError
from eagle3.evaluation.sets import HELD_OUT, prompt_file
from eagle3.metrics import Reporter
from eagle3.server.flags import RESERVED_TOKENS
from eagle3.target.info import TargetInfo


@dataclass(frozen=True)
class Prompt:
    set: str
    key: str
    """Names it in its set."""
    input_ids: list[int]


@dataclass(frozen=True)
class PromptSets:
    prompts: list[Prompt]
    end_ids: list[int]
    """Tokens that end an answer."""
    trained_on: int
    """Left out, because the drafter has seen them."""


def load_prompts(cfg: Config, target: TargetInfo, prepared: Path | None, reporter: Reporter) -> PromptSets:
    """All sets of `evaluate.prompts`, at most `evaluate.limit` of each.

    Args:
        prepared: folder of what the drafter was trained on; None where that is not known (a drafter of others).

    Raises:
        ConfigError: a set is not there. DataError: a file is no prompt set, or nothing is left of all.
    """
    wanted = cfg.evaluate
    tokenizer = ConversationTokenizer(target, cfg.target)
    held_out, seen = _conversations(prepared) if prepared is not None else ([], set[tuple[int, ...]]())
    longest = target.context_length - wanted.max_new_tokens - RESERVED_TOKENS
    found: list[Prompt] = []
    trained_on = 0
    for name in wanted.prompts:
        rows = held_out if name == HELD_OUT else _read(prompt_file(name), tokenizer)
        kept = [row for row in rows if tuple(row[1]) not in seen]
        trained_on += len(rows) - len(kept)
        fitting = [Prompt(Path(name).stem, key, ids) for key, ids in kept if len(ids) <= longest]
        if len(fitting) < len(kept):
            reporter.note(f"{name}: {len(kept) - len(fitting)} prompts are too long for the target's context")
        found += fitting[: wanted.limit]
    if trained_on:
        reporter.note(f"{trained_on} prompts are left out: the drafter was trained on them")
    if not found:
        raise DataError("evaluate.prompts: nothing is left to ask; name other sets, or lower evaluate.max_new_tokens")
    return PromptSets(found, list(tokenizer.end_ids), trained_on)


def _conversations(prepared: Path) -> tuple[list[tuple[str, list[int]]], set[tuple[int, ...]]]:
    """(held-out prompts by sample id, prompts of the others): the tokens before the first of a response."""
    prompts = Prompts.load(prepared)
    _, (held_out,) = read_prompts(prepared, ["held_out"])
    kept: list[tuple[str, list[int]]] = []
    seen: set[tuple[int, ...]] = set()
    for i, sample in enumerate(prompts.sample_ids.tolist()):
        rows = slice(int(prompts.offsets[i]), int(prompts.offsets[i + 1]))
        answers = np.flatnonzero(prompts.loss_mask[rows])
        if len(answers) == 0 or answers[0] == 0:
            continue
        ids = prompts.input_ids[rows][: answers[0]].tolist()
        if held_out[i]:
            kept.append((str(sample), ids))
        else:
            seen.add(tuple(ids))
    return kept, seen


def _read(path: Path, tokenizer: ConversationTokenizer) -> list[tuple[str, list[int]]]:
    found = []
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                row = json.loads(line)
                messages = row.get("messages") or [{"role": "user", "content": str(row["prompt"])}]
                while messages and messages[-1]["role"] == "assistant":
                    messages = messages[:-1]
                found.append((str(row.get("id", number)), tokenizer.prompt_ids(messages)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a prompt set, one {{'prompt': ...}} a line ({error!r})") from error
    return found
