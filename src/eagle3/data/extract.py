"""From prompts to a dataset of hidden states, through the target served by SGLang with the dump plugin.

Safe to interrupt in any way at any moment: what is committed stays, and the same call goes on from there.
"""

import json
import shutil
import time
from contextlib import suppress
from pathlib import Path

import psutil

from eagle3.config.schema import Config
from eagle3.data import lock
from eagle3.data.assembly import Assembly
from eagle3.data.attempts import extract_missing
from eagle3.data.checked import NAME as CHECKED
from eagle3.data.layout import StateShape, state_names
from eagle3.data.ledger import LedgerTail
from eagle3.data.limits import longest_prompt
from eagle3.data.manifest import NAME, Manifest, quantisation_text
from eagle3.data.placement import Prompts, place
from eagle3.data.targets import forget_choices
from eagle3.data.writer import blank_manifest
from eagle3.errors import DataError, Eagle3Error
from eagle3.files.disk import GIB, disk_error
from eagle3.metrics import Reporter
from eagle3.server.flags import DUMP_FOLDER
from eagle3.target import TargetInfo

IDENTITY = (
    "states",
    "dtype",
    "hidden_size",
    "vocab_size",
    "num_layers",
    "prompts_fingerprint",
    "tokenizer_sha256",
    "template_sha256",
)
"""What must be the same for an extraction to go on in a folder."""
OLD_SERVER_S = 30.0


def run_extraction(
    cfg: Config,
    target: TargetInfo,
    prompts: Path,
    out: Path,
    boundaries: list[int],
    reporter: Reporter,
    log_dir: Path,
) -> Manifest:
    """Makes the dataset folder `out` of the prompts in folder `prompts`, or completes it; gives its manifest.

    A shard that was touched since it was finished is read again, and damaged sequences are extracted anew. A dataset of
    another target that lies there is moved aside.

    Raises:
        DataError: another extraction holds the folder or made it from something else; the disk is full; more sequences
            than can be put up with are unusable.
        ServerError: the server did not start, its plugin stopped, or it died or stalled once too often.
        ProofError: what was dumped is not what the server computed.
    """
    work = out / "work"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with lock.hold(work):
            assembly = _begin(cfg, target, prompts, out, boundaries, reporter)
            if assembly.manifest.complete:
                shutil.rmtree(work)
                return assembly.manifest
            try:
                restarts = extract_missing(cfg, target, assembly, work, reporter, log_dir)
            except KeyboardInterrupt:
                reporter.note(_standing(assembly, out))
                raise
            except (Eagle3Error, OSError) as cause:
                error = cause if isinstance(cause, Eagle3Error) else disk_error(cause, Path(cause.filename or out))
                if not (assembly.done_sequences or isinstance(error, DataError)):
                    raise error from cause
                raise type(error)(f"{error}\n{_standing(assembly, out)}") from cause
            finally:
                assembly.close()
            _finish(assembly, work, restarts, reporter)
            return assembly.manifest
    except OSError as error:
        raise disk_error(error, Path(error.filename) if error.filename else out) from error


def _begin(
    cfg: Config, target: TargetInfo, prompts: Path, out: Path, boundaries: list[int], reporter: Reporter
) -> Assembly:
    """What is to be made, and what of it is there."""
    work = out / "work"
    _await_old_server(work, reporter)
    shape = StateShape(tuple(state_names(boundaries)), target.hidden_size, cfg.dataset.dtype)
    before = Manifest.load(out) if (out / NAME).exists() else None
    if before is not None and before.target.get("fingerprint") != target.fingerprint:
        reporter.note(_move_aside(out, before))
        before = None
    shard_gib = cfg.dataset.shard_gib
    if before is not None:  # a dataset keeps the shards that it was begun with
        shard_gib = before.placement.get("shard_gib", shard_gib)
    placement = place(Prompts.load(prompts), shape, shard_gib, longest_prompt(cfg, target))
    manifest = blank_manifest(shape, placement, _identity_of(target))
    manifest.placement["shard_gib"] = shard_gib
    manifest.vocab_size, manifest.num_layers = target.vocab_size, target.num_layers
    manifest.tokenizer_sha256, manifest.template_sha256 = _prepared(prompts)
    if before is not None:
        _require_same(before, manifest, out)
        manifest = before
    was_complete = manifest.complete
    assembly = Assembly(out, placement, manifest)
    assembly.resume(LedgerTail(work).poll(), lambda done, total: reporter.progress(done / GIB, total / GIB, unit="GiB"))
    for text in assembly.redone:
        reporter.note(text)
    if assembly.redone:  # a training may have taken the target's choices from damaged rows
        forget_choices(out)
    if assembly.redone and assembly.done_sequences == len(placement):
        manifest.complete = was_complete
        manifest.save(out)
    elif not manifest.complete and assembly.done_sequences:
        reporter.note(f"{assembly.done_sequences} of {len(placement)} sequences are there already")
    if placement.skipped:
        reporter.note("skipped: " + ", ".join(f"{n} {reason}" for reason, n in placement.skipped.items()))
    return assembly


def _identity_of(target: TargetInfo) -> dict[str, str]:
    return {"name": target.name, "source": target.source, "fingerprint": target.fingerprint}


def _prepared(prompts: Path) -> tuple[str, str]:
    with suppress(OSError, ValueError):
        raw = json.loads((prompts / "prepare.json").read_text(encoding="utf-8"))
        return str(raw.get("tokenizer_sha256", "")), str(raw.get("template_sha256", ""))
    return "", ""


def _require_same(before: Manifest, now: Manifest, out: Path) -> None:
    pairs = {name: (getattr(before, name), getattr(now, name)) for name in IDENTITY}
    pairs["placement.sha256"] = (before.placement.get("sha256"), now.placement["sha256"])
    for name, (there, here) in pairs.items():
        if there != here:
            raise DataError(
                f"{out} holds another extraction: its {name} is {there!r}, and this one's is {here!r}. "
                "Remove the folder to extract anew, or choose another paths.artifacts."
            )


def _move_aside(out: Path, before: Manifest) -> str:
    """Another target's states can't be told from this one's, so nothing here is used; nothing is deleted either."""
    forget_choices(out)
    name = f"{out.name}-of-another-target-{time.strftime('%Y%m%d-%H%M%S')}"
    aside = out.parent / name
    aside.mkdir()
    ledgers = (out / "work").glob("ledger-*")
    for path in (*out.glob("shard-*"), *ledgers, *out.glob(CHECKED), out / NAME):  # the manifest last
        path.rename(aside / path.name)
    return (
        f"{out} held a dataset of another target, {before.target.get('name')!r}: it is in {aside} now, for you to "
        "remove, and everything is extracted anew"
    )


def _await_old_server(work: Path, reporter: Reporter) -> None:
    """A server whose client was killed ends by itself, but takes a while; until then it may still write."""
    deadline = time.monotonic() + OLD_SERVER_S
    told = False
    while old := _writing_into(work):
        if not told:
            reporter.note(f"waiting for the server of an earlier run to end (process {old[0].pid})")
            told = True
        if time.monotonic() > deadline:
            for process in old:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        psutil.wait_procs(old, timeout=1.0)


def _writing_into(work: Path) -> list[psutil.Process]:
    """Everything that belongs to a server of this dataset: the plugin's writers are processes of their own."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(DUMP_FOLDER) == str(work) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _finish(assembly: Assembly, work: Path, restarts: int, reporter: Reporter) -> None:
    manifest = assembly.manifest
    manifest.complete = True
    manifest.save(assembly.folder)
    shutil.rmtree(work)
    row = {"sequences": manifest.sequences, "tokens": manifest.tokens, "gb": manifest.bytes / 1e9}
    proof = {f"proof_{when}_{k}": v for when, found in manifest.proof.items() for k, v in found.items()}
    given_up = {"quarantined": len(manifest.quarantined), "skipped": sum(manifest.skipped.values())}
    done = {**row, **given_up, "shards": len(manifest.shards), "restarts": restarts, **proof}
    reporter.log({f"extract/{name}": value for name, value in done.items()}, step=manifest.sequences)
    if manifest.quantisation:
        reporter.note(f"stored as {manifest.dtype}: {quantisation_text(manifest.quantisation)}")


def _standing(assembly: Assembly, out: Path) -> str:
    done, total = assembly.done_sequences - len(assembly.quarantined), len(assembly.placement)
    return f"{done} of {total} sequences are committed in {out}; the same command continues."
