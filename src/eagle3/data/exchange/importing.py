"""Another project's dataset, made into one of ours: first all tokens, then the states, one sequence at a time.

It is placed and assembled like an extraction, whose ledger is written here: a run that was stopped continues with the
next sequence, and with the files as they are then (`sources.py`). Beside the shards lies what `prepare` would have made
of the conversations.
"""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from isal.isal_zlib import crc32
from torch import Tensor

from eagle3.config.schema import DatasetConfig
from eagle3.data.assembly import Assembly
from eagle3.data.exchange.formats import Format, Source, Stored, require_computed
from eagle3.data.exchange.marker import IMPORT, claim, require_apart
from eagle3.data.exchange.norm import FinalNorm, FinalState
from eagle3.data.exchange.pace import Pace
from eagle3.data.exchange.preparing import read_tokens
from eagle3.data.exchange.sources import Signs, Since, Sources, imported_signs, signs_of
from eagle3.data.layout import FINAL, StateShape, state_names
from eagle3.data.ledger import Committed, LedgerTail
from eagle3.data.lock import hold
from eagle3.data.manifest import NAME, Manifest
from eagle3.data.placement import PROMPTS, Placement, Prompts, place
from eagle3.data.skeleton import PARTIAL
from eagle3.data.space import dataset_bytes, require_space
from eagle3.data.writer import blank_manifest
from eagle3.errors import ConfigError, DataError, Eagle3Error
from eagle3.files.disk import disk_error
from eagle3.metrics import Reporter
from eagle3.target.info import TargetInfo

LEDGER = "ledger-import.jsonl"
SHARD_GIB = DatasetConfig.shard_gib
GONE = "its file was taken away"
"""Why a sequence is quarantined whose file is no longer there when its turn comes."""


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

    def states(self, path: Path, ids: np.ndarray, mask: np.ndarray) -> dict[str, Tensor]:
        """Of a file whose tokens and loss mask are these: `[S, H]` bfloat16 each.

        Raises DataError where it is damaged, another sequence, or holds what no model computes.
        """
        if self.form.require_intact is not None:
            self.form.require_intact(path)
        stored = self.form.load(path)
        self._require_same(path, stored, ids, mask)
        require_computed(path, stored.columns)
        last = stored.columns[-1]
        self.norm.require(self.final, last, path)
        found = {f"boundary.{b}": c.bfloat16() for b, c in zip(self.boundaries, stored.columns, strict=False)}
        found[FINAL] = last.bfloat16() if self.final == "post" else self.norm.apply(last)
        return found

    def _require_same(self, path: Path, stored: Stored, ids: np.ndarray, mask: np.ndarray) -> None:
        there = [list(column.shape) for column in stored.columns]
        if there != [[len(ids), self.target.hidden_size]] * self.columns:
            raise DataError(
                f"{path}: states {there}, where {self.columns} of {len(ids)} tokens and {self.target.hidden_size} "
                f"numbers are due, as in {self.source.files[0]}. Make the file again."
            )
        if not np.array_equal(stored.input_ids.numpy(), ids):
            raise DataError(f"{path}: its token ids are not those of its sequence. Make the file again.")
        if len(stored.loss_mask) and not np.array_equal(stored.loss_mask.numpy() != 0, mask != 0):
            raise DataError(f"{path}: its loss mask is another one than when the import began. Make the file again.")


def import_data(folder: Path, out: Path, job: Import, reporter: Reporter, shard_gib: float = SHARD_GIB) -> Manifest:
    """Makes `out` a dataset of ours, or continues; gives its manifest.

    Files that were taken away, or made again, since an earlier run are left out, or imported again.

    Raises:
        ConfigError: `out` has no room, holds something else, or lies in `folder`.
        DataError: a file is damaged, or not what it should be; the disk is full. What was imported is kept.
    """
    require_apart(folder, out)
    try:
        what = {
            "source": str(folder.resolve()),
            "format": job.form.name,
            "boundaries": job.boundaries,
            "final": job.final,
            "target": job.target.fingerprint,
        }
        claim(out, IMPORT, what)
        work = out / "work"
        with hold(work):
            if not (out / PROMPTS).exists():
                Sources.of(job.source).save(out)
                try:
                    read_tokens(job.source, job.target, out, reporter)
                except KeyboardInterrupt:
                    reporter.note("token ids are read first, and all at once: the same command begins with them again")
                    raise
            prompts, begun = Prompts.load(out), Sources.load(out)
            since = Since.of(job.source, begun, imported_signs(work / LEDGER), prompts.sample_ids.tolist())
            require_space(
                dataset_bytes(len(prompts.input_ids), job.shape.hidden_size, len(job.shape.states)),
                out,
                "Choose a folder on a larger disk, or free some space.",
            )
            manifest = _assemble(job, prompts, since, out, reporter, shard_gib)
            begun.signs |= imported_signs(work / LEDGER)
            begun.save(out)
            manifest.complete = True
            manifest.save(out)
            shutil.rmtree(work)
            (out / "DONE").touch()
            return manifest
    except OSError as error:
        raise disk_error(error, Path(error.filename) if error.filename else out) from error


def _assemble(job: Import, prompts: Prompts, since: Since, out: Path, reporter: Reporter, shard_gib: float) -> Manifest:
    placement = place(prompts, job.shape, shard_gib, context_length=int(prompts.lengths.max()))
    if (out / NAME).exists():
        manifest = Manifest.load(out)
        if manifest.placement != placement.summary():
            raise DataError(f"{out}: its manifest is not of its prompts. Remove the folder and import again.")
    else:
        target = {"name": job.target.name, "source": job.target.source, "fingerprint": job.target.fingerprint}
        manifest = blank_manifest(job.shape, placement, target)
        manifest.vocab_size, manifest.num_layers = job.target.vocab_size, job.target.num_layers
        manifest.save(out)
    back = {int(i) for i, reason in manifest.quarantined.items() if reason == GONE} & since.file_of.keys()
    assembly = Assembly(out, placement, manifest)
    assembly.resume(LedgerTail(out / "work").poll(), redo=since.changed.keys() | back)
    missing = {int(placement.sample_ids[i]): i for i in assembly.missing()}
    unused = sorted(since.gone.keys() & missing.keys())
    for text in (*since.notes(unused), *assembly.redone):
        reporter.note(text.replace("extracted", "imported"))
    if assembly.done_sequences and missing:
        reporter.note(f"{assembly.done_sequences} of {len(placement)} sequences are there already")
    try:
        for sample_id in unused:
            assembly.make_room(missing[sample_id])
            assembly.quarantine(missing[sample_id], GONE)
        _write_states(job, since.file_of, assembly, reporter)
    except KeyboardInterrupt:
        reporter.note(_standing(assembly))
        raise
    except Eagle3Error as error:
        raise type(error)(f"{error}\n{_standing(assembly)}") from error
    except OSError as error:
        full = disk_error(error, Path(error.filename) if error.filename else out)
        raise DataError(f"{full}\n{_standing(assembly)}") from error
    finally:
        assembly.close()
        assembly.collect()
    for reason, count in Counter(manifest.quarantined.values()).items():
        reporter.note(f"{count} sequences stay unused: {reason}")
    return manifest


def _standing(assembly: Assembly) -> str:
    done, total = assembly.done_sequences, len(assembly.placement)
    return f"{done} of {total} sequences are imported into {assembly.folder}; the same command continues."


def _write_states(job: Import, file_of: dict[int, Path], assembly: Assembly, reporter: Reporter) -> None:
    placement = assembly.placement
    pace = Pace(reporter, assembly.done_sequences, len(placement), job.shape.token_bytes)
    with (assembly.folder / "work" / LEDGER).open("a", encoding="utf-8") as ledger:
        if ledger.tell():
            ledger.write("\n")  # after a line torn by kill -9, so that the next one is whole
        for i in assembly.missing():
            sample_id = int(placement.sample_ids[i])
            assembly.make_room(i)
            path = file_of[sample_id]
            signs: Signs = signs_of(path)
            states = job.states(path, placement.input_ids(i), placement.loss_mask(i))
            entry = _write_sequence(assembly.folder, placement, i, states)
            line = {"id": entry.sample_id, "length": entry.length, "crc": entry.crc, "bad": entry.bad, "source": signs}
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
