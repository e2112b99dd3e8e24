"""A dataset of ours, written in another project's format: one sequence at a time, continued where it was stopped."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from eagle3.data.exchange.formats import Format, Stored, Tokens, as_tokens
from eagle3.data.exchange.marker import EXPORT, claim, require_apart
from eagle3.data.exchange.norm import FinalNorm, FinalState
from eagle3.data.exchange.pace import Pace
from eagle3.data.layout import FINAL
from eagle3.data.lock import hold
from eagle3.data.shards import HiddenStates
from eagle3.data.space import require_space
from eagle3.errors import ConfigError, DataError, Eagle3Error
from eagle3.files.disk import disk_error
from eagle3.files.whole import whole_file
from eagle3.metrics import Reporter
from eagle3.target.info import TargetInfo

BYTES_PER_TOKEN, BYTES_PER_FILE = 16, 4096
"""Ids and masks of 8 bytes each; what a file takes beside its tensors."""


def export_data(
    dataset: Path,
    out: Path,
    form: Format,
    reporter: Reporter,
    boundaries: list[int] | None = None,
    target: TargetInfo | None = None,
    final: FinalState | None = None,
) -> int:
    """Writes every sequence of a complete dataset, numbered in its order; gives how many. States are bfloat16.

    Args:
        out: a new folder, or one that the same export was stopped in.
        boundaries: None takes all but the last state before the norm, which is stored as the last one if it is there.
        target: needed where the format keeps the state before the final norm, and the dataset does not have it.
        final: None is what the format keeps.

    Raises:
        ConfigError: the dataset lacks what was asked for, `target` is missing or another model, or `out` has no room or
            lies in the dataset.
        DataError: the dataset is damaged or not complete; the disk is full.
    """
    require_apart(dataset, out)
    states = HiddenStates(dataset)
    manifest = states.manifest
    captured = [b for b in manifest.boundaries if b != manifest.num_layers]
    chosen = captured if boundaries is None else boundaries
    lost = sorted(set(chosen) - set(captured))
    if lost or not chosen:
        raise ConfigError(f"--boundaries: {dataset} has {captured}, not {lost or 'none'}; choose among them")
    last, norm = _last_state(states, form, final or form.final, target)
    names = [*(f"boundary.{b}" for b in chosen), last]
    what = {
        "format": form.name,
        "boundaries": chosen,
        "final": final or form.final,
        "dataset": manifest.placement.get("sha256"),
        "prompts": manifest.prompts_fingerprint,
        "target": manifest.target.get("fingerprint"),
    }
    row = manifest.hidden_size * 2 * len(names)
    tokens = int(states.lengths.sum())
    told = {"source": str(dataset.resolve()), "sequences": len(states), "tokens": tokens}
    told |= {"hidden_size": manifest.hidden_size, "target_name": str(manifest.target.get("name"))}
    done = 0
    try:
        require_space(
            tokens * (row + BYTES_PER_TOKEN) + len(states) * BYTES_PER_FILE,
            out,
            "Choose a folder on a larger disk, or free some space.",
        )
        claim(out, EXPORT, what, told)
        work = out / "work"
        with hold(work):
            pace = Pace(reporter, 0, len(states), row)
            for i in range(len(states)):
                path = out / form.file(i)
                done = i
                if _is_whole(path, form, states, i, len(names)):
                    pace.add(0)
                    continue
                if states.damaged(i):
                    raise DataError(
                        f"{states.folder}: the states of sequence {int(states.sample_ids[i])} are not those that were "
                        "written. Run `eagle3 verify` on it, and then the command that made it, which mends it"
                    )
                _save(path, form, _stored(states, i, names, norm))
                pace.add(int(states.lengths[i]))
            if form.finish:
                form.finish(out, _all_tokens(states), len(states))
            shutil.rmtree(work)
    except KeyboardInterrupt:
        reporter.note(_standing(done, states, out))
        raise
    except (Eagle3Error, OSError) as cause:
        told_error = cause if isinstance(cause, Eagle3Error) else disk_error(cause, Path(cause.filename or out))
        if not done:
            raise told_error from cause
        raise type(told_error)(f"{told_error}\n{_standing(done, states, out)}") from cause
    return len(states)


def _standing(done: int, states: HiddenStates, out: Path) -> str:
    return f"{done} of {len(states)} sequences are written to {out}; the same command continues."


def _last_state(
    states: HiddenStates, form: Format, final: FinalState, target: TargetInfo | None
) -> tuple[str, FinalNorm | None]:
    """The state that becomes the last one, and the norm that is to be undone on it."""
    manifest = states.manifest
    if final not in form.exports:
        raise ConfigError(
            f"--final {final}: {form.name}'s trainer takes the last state for one "
            f"{'before' if form.final == 'pre' else 'after'} the target's final norm; leave --final away"
        )
    if final == "post":
        return FINAL, None
    before = f"boundary.{manifest.num_layers}"
    if before in manifest.states:
        return before, None
    if target is None:
        raise ConfigError(
            f"--format {form.name} keeps the state before the target's final norm, and {states.folder} has the one "
            "after it. Add --target FOLDER, the model's: with its norm's weight a state is written that the trainer's "
            "norm makes the right one of"
        )
    if target.fingerprint != manifest.target.get("fingerprint"):
        raise ConfigError(
            f"--target {target.path}: not the model that {states.folder} was made with ({manifest.target.get('name')})"
        )
    norm = FinalNorm.of(target)
    norm.require("post", states.read(0, [FINAL])[FINAL], states.folder)
    return FINAL, norm


def _stored(states: HiddenStates, i: int, names: list[str], norm: FinalNorm | None) -> Stored:
    found = states.read(i, ["input_ids", "loss_mask", *names])
    columns = [found[name].bfloat16() for name in names]
    if norm is not None:
        columns[-1] = norm.undo(columns[-1])
    return Stored(found["input_ids"].long(), found["loss_mask"].long(), columns)


def _is_whole(path: Path, form: Format, states: HiddenStates, i: int, columns: int) -> bool:
    """Whether an earlier run wrote the file, and all of it."""
    if not path.exists():
        return False
    try:
        if form.require_intact is not None:
            form.require_intact(path)
        there = form.load(path)
    except DataError:
        return False
    shape = (int(states.lengths[i]), states.manifest.hidden_size)
    return (
        torch.equal(there.input_ids, states.read(i, ["input_ids"])["input_ids"].long())
        and [tuple(column.shape) for column in there.columns] == [shape] * columns
    )


def _save(path: Path, form: Format, stored: Stored) -> None:
    """Written beside and renamed: under its name a file is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        form.save(partial, stored)


def _all_tokens(states: HiddenStates) -> Iterator[Tokens]:
    for i in range(len(states)):
        found = states.read(i, ["input_ids", "loss_mask"])
        yield as_tokens(found["input_ids"], found["loss_mask"])
