"""Another project's dataset, made into one of ours: first all tokens, then the states, one sequence at a time.

It is placed and assembled like an extraction, whose ledger is written here: a run that was stopped continues with the
next sequence. Beside the shards lies what `prepare` would have made of the conversations.
"""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from isal.isal_zlib import crc32
from torch import Tensor

from eagle3.config.schema import DatasetConfig
from eagle3.data.assembly import Assembly
from eagle3.data.exchange.formats import Format, Source, Stored
from eagle3.data.exchange.marker import claim
from eagle3.data.exchange.norm import FinalNorm, FinalState
from eagle3.data.exchange.pace import Pace
from eagle3.data.json_file import write_json
from eagle3.data.layout import FINAL, StateShape, state_names
from eagle3.data.ledger import Committed, LedgerTail
from eagle3.data.lock import hold
from eagle3.data.manifest import NAME, Manifest
from eagle3.data.placement import PROMPTS, Placement, Prompts, place
from eagle3.data.prepare import save_prompts
from eagle3.data.skeleton import PARTIAL
from eagle3.data.space import dataset_bytes, disk_error, require_space
from eagle3.data.split import held_out_sides
from eagle3.data.writer import blank_manifest
from eagle3.errors import ConfigError, DataError
from eagle3.metrics import Reporter
from eagle3.target.info import TargetInfo

MARKER = "import.json"
LEDGER = "ledger-import.jsonl"
SHARD_GIB = DatasetConfig.shard_gib


class Import:
    """What is taken from where, and what it becomes."""

    def __init__(
        self,
        folder: Path,
        form: Format,
        boundaries: list[int],
        target: TargetInfo,
        final: FinalState | None = None,
    ) -> None:
        """
        Args:
            boundaries: of the stored states in their order, but for the last one. Where that is the one before the
                final norm, it may be named too, as the target's number of layers: it is then kept as well.
            target: the model that the states were made with.
            final: what the last state is; None is what the format keeps.

        Raises:
            ConfigError: the boundaries are not the target's, or not as many as the files have.
            DataError: the folder is not of the format, or of another model.
        """
        self.form, self.target, self.boundaries = form, target, boundaries
        self.final: FinalState = final or form.final
        self.source: Source = form.open(folder)
        first = form.load(self.source.files[0])
        self.columns = len(first.columns)
        self._require_boundaries(self.columns)
        if first.columns[-1].shape[-1] != target.hidden_size:
            raise DataError(
                f"{self.source.files[0]}: states of {first.columns[-1].shape[-1]} numbers, and {target.path} has a "
                f"hidden size of {target.hidden_size}. Give the model that they were made with as --target."
            )
        self.norm = FinalNorm.of(target)
        self.shape = StateShape(tuple(state_names(boundaries)), target.hidden_size)

    def _require_boundaries(self, columns: int) -> None:
        n, named = self.target.num_layers, self.boundaries
        keeps = self.final == "pre" and len(named) == columns and named[-1] == n
        if len(set(named)) != len(named) or any(not 1 <= b < n + keeps for b in named):
            raise ConfigError(
                f"--boundaries {named}: each once, and within 1..{n - 1}. Boundary b is the output of layer b-1, and "
                f"{self.target.path} has layers 0..{n - 1}"
            )
        if len(named) != columns - 1 + keeps:
            raise ConfigError(
                f"--boundaries {named}: {len(named)}, and the files have {columns - 1} states before the last one; "
                "name the boundary of each, in their order"
            )

    def states(self, i: int, ids: np.ndarray) -> dict[str, Tensor]:
        """Of file i, whose tokens are `ids`: `[S, H]` bfloat16 each. Raises DataError where it is another sequence."""
        path = self.source.files[i]
        stored = self.form.load(path)
        self._require_same(path, stored, ids)
        last = stored.columns[-1]
        self.norm.require(self.final, last, path)
        found = {f"boundary.{b}": c.bfloat16() for b, c in zip(self.boundaries, stored.columns, strict=False)}
        found[FINAL] = last.bfloat16() if self.final == "post" else self.norm.apply(last)
        return found

    def _require_same(self, path: Path, stored: Stored, ids: np.ndarray) -> None:
        there = [list(column.shape) for column in stored.columns]
        if there != [[len(ids), self.target.hidden_size]] * self.columns:
            raise DataError(
                f"{path}: states {there}, where {self.columns} of {len(ids)} tokens and {self.target.hidden_size} "
                f"numbers are due, as in {self.source.files[0]}. Make the file again."
            )
        if not np.array_equal(stored.input_ids.numpy(), ids):
            raise DataError(f"{path}: its token ids are not those of its sequence. Make the file again.")


def import_data(folder: Path, out: Path, job: Import, reporter: Reporter, shard_gib: float = SHARD_GIB) -> Manifest:
    """Makes `out` a dataset of ours, or continues; gives its manifest.

    Raises:
        ConfigError: `out` has no room, or holds something else.
        DataError: a file is truncated, or not what it should be; the disk is full. What was finished is kept.
    """
    try:
        what = {
            "source": str(folder.resolve()),
            "format": job.form.name,
            "files": len(job.source.files),
            "boundaries": job.boundaries,
            "final": job.final,
            "target": job.target.fingerprint,
        }
        claim(out, MARKER, what)
        work = out / "work"
        with hold(work):
            if not (out / PROMPTS).exists():
                _read_tokens(job, folder, out, reporter)
            prompts = Prompts.load(out)
            require_space(
                dataset_bytes(len(prompts.input_ids), job.shape.hidden_size, len(job.shape.states)),
                out,
                "Choose a folder on a larger disk, or free some space.",
            )
            manifest = _assemble(job, prompts, out, reporter, shard_gib)
            shutil.rmtree(work)
            (out / "DONE").touch()
            return manifest
    except OSError as error:
        raise disk_error(error, Path(error.filename) if error.filename else out) from error


def _read_tokens(job: Import, folder: Path, out: Path, reporter: Reporter) -> None:
    """prompts.safetensors and prepare.json, as `prepare` would have written them."""
    kept: list[tuple[int, np.ndarray, np.ndarray]] = []
    skipped: Counter[str] = Counter(missing=job.source.missing)
    pace = Pace(reporter, 0, len(job.source.files))
    for i, sample_id in enumerate(job.source.sample_ids):
        ids, mask = job.source.tokens(i)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < job.target.vocab_size:
            raise DataError(
                f"{job.source.files[i]}: token id {ids.max()} is outside the {job.target.vocab_size:,} of "
                f"{job.target.path}. Give the model that it was made with as --target."
            )
        # The first token is never predicted, so a response token there teaches nothing.
        if mask[1:].any():
            kept.append((sample_id, ids, mask))
        else:
            skipped["no response token"] += 1
        pace.add(len(ids))
    if len(kept) < 2:
        raise DataError(f"{folder}: {len(kept)} sequences with something to learn; at least two are needed.")
    keys = [ids[: int(mask.argmax())].tobytes() for _, ids, mask in kept]
    held_out = held_out_sides(keys, DatasetConfig.held_out, DatasetConfig.seed)
    ids, masks = [ids for _, ids, _ in kept], [mask for _, _, mask in kept]
    lengths = np.array([len(i) for i in ids])
    summary: dict[str, Any] = {
        "format_version": 1,
        "source": str(folder.resolve()),
        "target": job.target.name,
        "regenerated": False,
        "counts": {
            "conversations": len(job.source.files) + job.source.missing,
            "kept": len(kept),
            "truncated": 0,
            "skipped": {reason: count for reason, count in skipped.items() if count},
        },
        "problems": [],
        "tokens": int(lengths.sum()),
        "response_tokens": int(sum(int(mask.sum()) for mask in masks)),
        "longest": int(lengths.max()),
        "held_out": {"sequences": int(held_out.sum()), "tokens": int(lengths[held_out != 0].sum())},
        "tokenizer_sha256": "",
        "template_sha256": "",
    }
    write_json(out / "prepare.json", summary)
    # Last, because whoever finds it goes on to the states.
    save_prompts(out / PROMPTS, ids, masks, [sample_id for sample_id, _, _ in kept], held_out)


def _assemble(job: Import, prompts: Prompts, out: Path, reporter: Reporter, shard_gib: float) -> Manifest:
    placement = place(prompts, job.shape, shard_gib, context_length=int(prompts.lengths.max()))
    if (out / NAME).exists():
        manifest = Manifest.load(out)
        if manifest.placement != placement.summary():
            raise DataError(f"{out}: its manifest is not of its prompts. Remove the folder and import again.")
    else:
        target = {"name": job.target.name, "source": job.target.source, "fingerprint": job.target.fingerprint}
        manifest = blank_manifest(job.shape, placement, target)
        manifest.vocab_size, manifest.num_layers = job.target.vocab_size, job.target.num_layers
    assembly = Assembly(out, placement, manifest)
    assembly.resume(LedgerTail(out / "work").poll())
    for text in assembly.redone:
        reporter.note(text.replace("extracted", "imported"))
    try:
        _write_states(job, assembly, reporter)
    finally:
        assembly.close()
        assembly.collect()
    if manifest.quarantined:
        reporter.note(f"{len(manifest.quarantined)} sequences have states that are not finite and stay unused")
    manifest.complete = True
    manifest.save(out)
    return manifest


def _write_states(job: Import, assembly: Assembly, reporter: Reporter) -> None:
    placement, file_of = assembly.placement, {s: i for i, s in enumerate(job.source.sample_ids)}
    pace = Pace(reporter, assembly.done_sequences, len(placement), job.shape.token_bytes)
    with (assembly.folder / "work" / LEDGER).open("a", encoding="utf-8") as ledger:
        if ledger.tell():
            ledger.write("\n")  # after a line torn by kill -9, so that the next one is whole
        for i in assembly.missing():
            sample_id = int(placement.sample_ids[i])
            assembly.make_room(i)
            entry = _write_sequence(
                assembly.folder, placement, i, job.states(file_of[sample_id], placement.input_ids(i))
            )
            line = {"id": entry.sample_id, "length": entry.length, "crc": entry.crc, "bad": entry.bad}
            ledger.write(json.dumps(line) + "\n")
            ledger.flush()
            assembly.accept(entry)
            assembly.collect()
            pace.add(entry.length)
    assembly.collect(wait=True)


def _write_sequence(folder: Path, placement: Placement, i: int, states: dict[str, Tensor]) -> Committed:
    plan = placement.shards[int(placement.shard[i])]
    row, length = int(placement.row[i]), int(placement.length[i])
    sums, bad = [], None
    with (folder / (plan.file + PARTIAL)).open("r+b") as file:
        for name in plan.layout.shape.states:
            low, high = torch.aminmax(states[name])
            if bool(torch.isnan(low)):
                bad = "nan"
            elif bool(torch.isinf(low) | torch.isinf(high)):
                bad = bad or "inf"
            data = states[name].contiguous().view(torch.uint8).numpy().data
            sums.append(crc32(data))
            file.seek(plan.layout.rows(name, row, length)[0])
            file.write(data)
    return Committed(int(placement.sample_ids[i]), length, sums, bad)
