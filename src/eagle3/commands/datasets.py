"""What `eagle3 inspect` says of prompts, of hidden states, and of hidden states in other projects' formats."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from eagle3.commands.origin import Facts
from eagle3.data.exchange.marker import EXPORT, IMPORT
from eagle3.data.manifest import Manifest, quantisation_text
from eagle3.data.standing import Standing, standing
from eagle3.files.json_file import json_or_empty
from eagle3.tracking.results import lengths, proof_texts
from eagle3.units import counted, quantity, size


def dataset(path: Path) -> Facts:
    """Raises DataError for a manifest that is not one."""
    manifest = Manifest.load(path)
    target = manifest.target
    yield "target", f"{target.get('name')}, from {target.get('source')}"
    boundaries = ", ".join(map(str, manifest.boundaries))
    yield "states", f"boundaries {boundaries} (residual stream entering these layers), and final (after the last norm)"
    yield "stored as", f"{manifest.dtype}, {quantity(manifest.hidden_size)} wide"
    yield (
        "holds",
        f"{quantity(manifest.sequences)} sequences, {quantity(manifest.tokens)} tokens, {size(manifest.bytes)}",
    )
    yield "", f"in {counted(len(manifest.shards), 'shard')}"
    yield from _state(manifest, standing(path, manifest))
    for found, label in ((manifest.quarantined, "quarantined"), (manifest.skipped, "skipped")):
        if found:
            yield label, _counted(found)
    if (path / IMPORT).exists():
        yield _imported(path)
        yield "train", f"python run.py dataset.path={shlex.quote(str(path.resolve()))} ..."
    else:
        yield "made by", f"SGLang {manifest.sglang_version}; plugin {manifest.plugin_sha256[:12]}"
    if manifest.nccl_env:
        yield "NCCL", " ".join(f"{name}={value}" for name, value in manifest.nccl_env.items())
    yield from (("proof", text) for text in proof_texts(manifest.proof))
    if manifest.quantisation:
        yield "8 bits", quantisation_text(manifest.quantisation)
    yield "next", f"eagle3 verify {shlex.quote(str(path))}"


def _state(manifest: Manifest, rest: Standing) -> Facts:
    if manifest.complete:
        yield "state", "complete"
        return
    planned = manifest.placement
    done, tokens = manifest.sequences + rest.sequences, manifest.tokens + rest.tokens
    left_over = len(manifest.shards) < planned["shards"]
    yield (
        "state",
        f"not complete: {quantity(done)} of {quantity(planned['sequences'])} sequences and {quantity(tokens)} of "
        f"{quantity(planned['tokens'])} tokens are committed; the same command continues",
    )
    if left_over:
        yield (
            "",
            f"{quantity(rest.sequences)} of these sequences, {quantity(rest.tokens)} tokens, are in shards that are "
            f"not finished ({len(manifest.shards)} of {counted(planned['shards'], 'shard')} are)",
        )


def _imported(path: Path) -> tuple[str, str]:
    made = json_or_empty(path / IMPORT)
    return "made by", f"imported from {made.get('source')}, in the format {made.get('format')}"


def begun(path: Path) -> Facts:
    """A dataset without a manifest yet."""
    if (path / IMPORT).exists():
        yield _imported(path)
        yield "state", "begun: the token ids are read first, then the states; the same command continues"
        return
    rest = standing(path, None)
    yield "state", f"begun: {quantity(rest.sequences)} sequences are committed, and the proof before the rest is still"
    yield "", "to be passed; the same command continues"


def exported(path: Path) -> Facts:
    made = json_or_empty(path / EXPORT)
    form, boundaries = str(made.get("format")), made.get("boundaries") or []
    yield (
        "format",
        f"{form}, with the last state from {'before' if made.get('final') == 'pre' else 'after'} the final norm",
    )
    yield "states", f"boundaries {', '.join(map(str, boundaries))}, and the last one"
    source, name = made.get("source", "a dataset that was not noted"), made.get("target_name")
    yield "of", f"{source}{f', hidden states of {name}' if name else ''}"
    there = sum(1 for file in path.rglob("*") if file.suffix in (".pt", ".ckpt") or file.match("hs_*.safetensors"))
    planned = made.get("sequences", there)
    of = "" if there == planned else f" of {quantity(planned)}"
    yield "holds", f"{quantity(there)}{of} sequences, a file each"
    finished = there == planned and not (path / "work").exists()
    yield "state", "finished" if finished else "not finished: the same command continues it"
    yield "next", f"eagle3 verify {shlex.quote(str(path))}"


def _counted(found: dict[str, Any]) -> str:
    """{reason: n}, or {id: reason}, as `n x reason`."""
    counts: dict[str, int] = {}
    for name, value in found.items():
        reason, count = (name, value) if isinstance(value, int) else (str(value), 1)
        counts[reason] = counts.get(reason, 0) + count
    return ", ".join(f"{count:,} x {reason}" for reason, count in counts.items()) or "none"


def prepared(path: Path) -> Facts:
    made = json_or_empty(path / "prepare.json")
    counts = made.get("counts") or {}
    yield "source", str(made.get("source"))
    yield "target", f"{made.get('target')} (its tokenizer and chat template)"
    yield "holds", f"{quantity(counts.get('kept', 0))} of {quantity(counts.get('conversations', 0))} conversations"
    if counts.get("skipped"):
        yield "left out", _counted(counts["skipped"])
    yield "tokens", f"{quantity(made.get('tokens', 0))}, {quantity(made.get('response_tokens', 0))} in responses"
    held = made.get("held_out") or {}
    yield "held out", f"{quantity(held.get('sequences', 0))} conversations, {quantity(held.get('tokens', 0))} tokens"
    if (path / "prompts.safetensors").is_file():
        prompts, responses = lengths(path)
        whole = prompts + responses
        if len(whole):
            middle, high = np.percentile(whole, [50, 95])
            yield "lengths", f"median {middle:,.0f}, 95% at most {high:,.0f}, longest {whole.max():,} tokens"
    for problem in (made.get("problems") or [])[:5]:
        yield "problem", f"{problem.get('line')}: {problem.get('why')}"
    if (path / "conversations.jsonl").is_file():
        yield "answers", f"by the target itself: {path / 'conversations.jsonl'}"
    yield "next", "it is extracted by the run that made it"
