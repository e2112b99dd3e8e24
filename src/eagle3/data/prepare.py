"""Stage one: conversations to token ids, loss mask and split, in one folder that everything later reads."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from eagle3.config.schema import Config, DatasetConfig
from eagle3.data.limits import longest_prompt
from eagle3.data.offsets import IntArray
from eagle3.data.prompts import EARLY_ROWS, Conversation, Tally, read_conversations
from eagle3.data.prompts_file import write_summary
from eagle3.data.split import held_out_sides
from eagle3.data.tokenize import ConversationTokenizer, Tokenized, tokenizer_sha256
from eagle3.errors import DataError
from eagle3.files.whole import whole_file
from eagle3.metrics import Reporter
from eagle3.target.info import TargetInfo

FORMAT_VERSION = 1
BATCH = 128
"""Conversations tokenised at a time: enough for the tokenizer's threads."""
TEMPLATE = "template can't be masked"


@dataclass
class _Kept:
    """The sequences that are kept, in order."""

    input_ids: list[IntArray] = field(default_factory=list)
    loss_mask: list[IntArray] = field(default_factory=list)
    sample_ids: list[int] = field(default_factory=list)
    prompt_keys: list[bytes] = field(default_factory=list)
    tokens: int = 0
    truncated: int = 0
    tokens_per_s: float = 0.0

    def add(self, conversation: Conversation, tokens: Tokenized) -> None:
        self.input_ids.append(tokens.input_ids)
        self.loss_mask.append(tokens.loss_mask)
        self.sample_ids.append(conversation.index)
        self.prompt_keys.append(conversation.prompt_key)
        self.tokens += len(tokens.input_ids)


def run_prepare(cfg: Config, target: TargetInfo, out: Path, reporter: Reporter, logs: Path) -> dict[str, Any]:
    """Writes prompts.safetensors and prepare.json into `out`, and conversations.jsonl where answers are regenerated.

    Args:
        logs: folder for the server's log, where one is needed.

    Returns:
        What prepare.json holds.

    Raises:
        ConfigError: the dataset's path, or the chat template, is none.
        DataError: nothing is left to train on, or too many rows are unusable.
        ServerError: the server that regenerates answers failed; the answers so far are kept.
    """
    tokenizer = ConversationTokenizer(target, cfg.target)
    tally = Tally()
    conversations: Iterable[Conversation] = read_conversations(cfg.dataset, tally)
    if cfg.prepare.regenerate:
        from eagle3.data.regenerate import regenerate

        conversations = regenerate(cfg, target, tokenizer, list(conversations), tally, out, reporter, logs)
    limit = min(cfg.dataset.max_length, longest_prompt(cfg, target))
    kept = _tokenise(conversations, tokenizer, tally, cfg.dataset, limit, reporter)
    _require_some(kept, tally, cfg.dataset, limit)
    held_out = held_out_sides(kept.prompt_keys, cfg.dataset.held_out, cfg.dataset.seed)
    save_prompts(out / "prompts.safetensors", kept.input_ids, kept.loss_mask, kept.sample_ids, held_out)
    summary = _summary(cfg, target, tokenizer, tally, kept, held_out, limit)
    write_summary(out, summary)
    _report(summary, kept.tokens_per_s, reporter)
    return summary


def _tokenise(
    conversations: Iterable[Conversation],
    tokenizer: ConversationTokenizer,
    tally: Tally,
    cfg: DatasetConfig,
    limit: int,
    reporter: Reporter,
) -> _Kept:
    kept, source, started, given = _Kept(), iter(conversations), time.monotonic(), 0
    while batch := list(islice(source, BATCH)):
        given += len(batch)
        answered = [c for c in batch if _has_answer(c, tally)]
        for conversation, tokens in zip(answered, tokenizer([c.messages for c in answered]), strict=True):
            if not isinstance(tokens, Tokenized):
                tally.skip(TEMPLATE, conversation.where, str(tokens))
            elif (fitted := _fit(tokens, limit, cfg.on_long, conversation, tally, kept)) is not None:
                kept.add(conversation, fitted)
        kept.tokens_per_s = kept.tokens / max(time.monotonic() - started, 1e-9)
        fields = {"tokens_per_s": kept.tokens_per_s, "tokens": kept.tokens, "skipped": tally.skipped.total() or None}
        if tally.total_bytes:
            # Whichever comes first ends it: the file, or `dataset.limit`.
            share = max(tally.read_bytes / tally.total_bytes, given / cfg.limit if cfg.limit else 0)
            reporter.progress(100 * share, 100, unit="%", **fields)
        else:
            reporter.progress(tally.conversations, cfg.limit or 0, unit="conversations", **fields)
        if not kept.sample_ids and tally.skipped[TEMPLATE] >= EARLY_ROWS:
            break  # it will not get better
    return kept


def _has_answer(conversation: Conversation, tally: Tally) -> bool:
    if any(message["role"] == "assistant" for message in conversation.messages):
        return True
    tally.skip("no response", conversation.where, "no message of the assistant; prepare.regenerate=true makes answers")
    return False


def _fit(
    tokens: Tokenized, limit: int, on_long: str, conversation: Conversation, tally: Tally, kept: _Kept
) -> Tokenized | None:
    """The sequence at most `limit` tokens long and with something to learn in it, or None (counted)."""
    length = len(tokens.input_ids)
    if length > limit:
        if on_long == "skip":
            tally.skip("too long", conversation.where, f"{length:,} tokens, more than {limit:,}")
            return None
        tokens = Tokenized(tokens.input_ids[:limit], tokens.loss_mask[:limit])
    # The first token is never predicted, so a response token there teaches nothing.
    if not tokens.loss_mask[1:].any():
        why = (
            f"its first {limit:,} of {length:,} tokens hold no response" if length > limit else "every answer is empty"
        )
        tally.skip("no response token", conversation.where, why)
        return None
    kept.truncated += length > limit
    return tokens


def _require_some(kept: _Kept, tally: Tally, cfg: DatasetConfig, limit: int) -> None:
    unmaskable = tally.skipped[TEMPLATE]
    good = tally.conversations - tally.bad
    if unmaskable > cfg.bad_rows * good:
        raise DataError(
            f"{cfg.path}: in {unmaskable:,} of {good:,} conversations the answers can't be told from the template's "
            f"text; more than dataset.bad_rows={cfg.bad_rows:g} of them.{tally.first_problems()}\n"
            "Write the template with {% generation %} ... {% endgeneration %} around what the model writes in an "
            "assistant's turn, with the token that ends it, and set target.chat_template to that file."
        )
    if not kept.sample_ids:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in tally.skipped.most_common())
        raise DataError(
            f"{cfg.path}: no conversation of {tally.conversations:,} is left to train on ({reasons or 'no rows'})."
            f"{tally.first_problems()}\nSequences are at most {limit:,} tokens (dataset.max_length, dataset.on_long)."
        )
    if len(kept.sample_ids) < 2:
        raise DataError(f"{cfg.path}: one conversation can't be split into training and held-out; give at least two.")


def save_prompts(
    path: Path, input_ids: list[IntArray], loss_mask: list[IntArray], sample_ids: list[int], held_out: IntArray
) -> None:
    """prompts.safetensors, whole or not at all. Raises DataError when the disk refuses."""
    lengths = [len(ids) for ids in input_ids]
    tensors = {
        "input_ids": np.concatenate(input_ids).astype(np.int32, copy=False),
        "loss_mask": np.concatenate(loss_mask).astype(np.uint8, copy=False),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "sample_ids": np.array(sample_ids, np.int64),
        "held_out": held_out,
    }
    with whole_file(path) as partial:
        save_file(tensors, partial)


def _summary(
    cfg: Config,
    target: TargetInfo,
    tokenizer: ConversationTokenizer,
    tally: Tally,
    kept: _Kept,
    held_out: IntArray,
    limit: int,
) -> dict[str, Any]:
    held_tokens = sum(len(ids) for ids, held in zip(kept.input_ids, held_out, strict=True) if held)
    return {
        "format_version": FORMAT_VERSION,
        "source": cfg.dataset.path,
        "target": target.name,
        "regenerated": cfg.prepare.regenerate,
        "counts": {
            "conversations": tally.conversations,
            "kept": len(kept.sample_ids),
            "truncated": kept.truncated,
            "skipped": dict(tally.skipped.most_common()),
        },
        "problems": tally.problems,
        "tokens": kept.tokens,
        "response_tokens": int(sum(int(mask.sum()) for mask in kept.loss_mask)),
        "length_limit": limit,
        "longest": max(len(ids) for ids in kept.input_ids),
        "held_out": {"sequences": int(held_out.sum()), "tokens": held_tokens},
        "tokenizer_sha256": tokenizer_sha256(target.path),
        "template_sha256": tokenizer.template_sha256,
    }


def _report(summary: dict[str, Any], tokens_per_s: float, reporter: Reporter) -> None:
    counts, held = summary["counts"], summary["held_out"]
    reporter.log(
        {
            "prepare/conversations": counts["conversations"],
            "prepare/kept": counts["kept"],
            "prepare/truncated": counts["truncated"],
            "prepare/skipped": sum(counts["skipped"].values()),
            "prepare/tokens": summary["tokens"],
            "prepare/response_tokens": summary["response_tokens"],
            "prepare/held_out_sequences": held["sequences"],
            "prepare/held_out_tokens": held["tokens"],
            "prepare/tokens_per_s": tokens_per_s,
        }
    )
    share = summary["response_tokens"] / summary["tokens"]
    reporter.note(
        f"{counts['kept']:,} of {counts['conversations']:,} conversations, {summary['tokens']:,} tokens "
        f"({share:.0%} of them responses); {held['sequences']:,} conversations held out"
    )
    for line in _left_out(summary):
        reporter.note(line)


def _left_out(summary: dict[str, Any]) -> Iterator[str]:
    counts = summary["counts"]
    if counts["skipped"]:
        yield "left out: " + ", ".join(f"{count:,} {reason}" for reason, count in counts["skipped"].items())
    for problem in summary["problems"][:3]:
        yield f"{problem['line']}: {problem['why']}"
    if counts["truncated"]:
        limit = f"{summary['length_limit']:,} tokens, the lesser of dataset.max_length and what the server takes"
        yield f"{counts['truncated']:,} cut at {limit}"
