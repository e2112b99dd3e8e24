"""From prompts to a dataset of hidden states, through the target served by SGLang with the dump plugin.

Safe to interrupt in any way at any moment: what is committed stays, and the same call goes on from there.
"""

import asyncio
import json
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from eagle3.config.schema import Config
from eagle3.data import lock
from eagle3.data.assembly import Assembly
from eagle3.data.layout import StateShape, state_names
from eagle3.data.ledger import LedgerTail
from eagle3.data.manifest import NAME, Manifest
from eagle3.data.meter import Meter
from eagle3.data.placement import Prompts, place, write_placement
from eagle3.data.proving import Proving
from eagle3.data.session import Session
from eagle3.data.space import disk_error
from eagle3.data.writer import blank_manifest
from eagle3.errors import DataError, Eagle3Error, ProofError
from eagle3.metrics import Reporter
from eagle3.server.client import Client
from eagle3.server.flags import DUMP_FOLDER, RESERVED_TOKENS, server_command
from eagle3.server.launch import Server
from eagle3.server.nccl import profile_env
from eagle3.server.patches import plugin_sha256
from eagle3.target import TargetInfo, load_lm_head

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
FOREVER_S = 86400.0
NOT_RECORDED = ("model_path", "host", "port")
ALSO_RECORDED = ("attention_backend", "chunked_prefill_size", "max_total_tokens", "quantization", "disable_radix_cache")


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

    Raises:
        DataError: another extraction holds the folder or made it from something else; the disk is full; more sequences
            than can be put up with are unusable.
        ServerError: the server did not start, died or stalled, or its plugin stopped.
        ProofError: what was dumped is not what the server computed.
    """
    work = out / "work"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with lock.hold(work):
            assembly, nonce = _begin(cfg, target, prompts, out, boundaries, reporter)
            if assembly.manifest.complete:
                shutil.rmtree(work)
                return assembly.manifest
            try:
                _extract(cfg, target, assembly, nonce, work, reporter, log_dir)
            except KeyboardInterrupt:
                reporter.note(_standing(assembly, out))
                raise
            except Eagle3Error as error:
                if not assembly.done_sequences:
                    raise
                raise type(error)(f"{error}\n{_standing(assembly, out)}") from error
            _finish(assembly, work, reporter)
            return assembly.manifest
    except OSError as error:
        raise disk_error(error, Path(error.filename) if error.filename else out) from error


def _begin(
    cfg: Config, target: TargetInfo, prompts: Path, out: Path, boundaries: list[int], reporter: Reporter
) -> tuple[Assembly, str]:
    """What is to be made, and what of it is there."""
    work = out / "work"
    _await_old_server(work, reporter)
    shape = StateShape(tuple(state_names(boundaries)), target.hidden_size, cfg.dataset.dtype)
    before = Manifest.load(out) if (out / NAME).exists() else None
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
    assembly = Assembly(out, placement, manifest)
    assembly.resume(LedgerTail(work).poll())
    for text in assembly.redone:
        reporter.note(text)
    if assembly.redone:
        manifest.complete = False
        manifest.save(out)
    elif not manifest.complete and assembly.done_sequences:
        reporter.note(f"{assembly.done_sequences} of {len(placement)} sequences are there already")
    if placement.skipped:
        reporter.note("skipped: " + ", ".join(f"{n} {reason}" for reason, n in placement.skipped.items()))
    return assembly, secrets.token_hex(4)


def longest_prompt(cfg: Config, target: TargetInfo) -> int:
    """Tokens: SGLang takes a few less than its context length, the target's unless a flag says otherwise."""
    flags = {**cfg.server.flags.common, **cfg.server.flags.extraction}
    return int(flags.get("context_length") or target.context_length) - RESERVED_TOKENS


def _identity_of(target: TargetInfo) -> dict[str, str]:
    return {"name": target.name, "source": target.source, "fingerprint": target.fingerprint}


def _prepared(prompts: Path) -> tuple[str, str]:
    with suppress(OSError, ValueError):
        raw = json.loads((prompts / "prepare.json").read_text(encoding="utf-8"))
        return str(raw.get("tokenizer_sha256", "")), str(raw.get("template_sha256", ""))
    return "", ""


def _require_same(before: Manifest, now: Manifest, out: Path) -> None:
    pairs = {name: (getattr(before, name), getattr(now, name)) for name in IDENTITY}
    pairs["target.fingerprint"] = (before.target.get("fingerprint"), now.target["fingerprint"])
    pairs["placement.sha256"] = (before.placement.get("sha256"), now.placement["sha256"])
    for name, (there, here) in pairs.items():
        if there != here:
            raise DataError(
                f"{out} holds another extraction: its {name} is {there!r}, and this one's is {here!r}. "
                "Remove the folder to extract anew, or choose another paths.artifacts."
            )


def _await_old_server(work: Path, reporter: Reporter) -> None:
    """A server whose client was killed ends by itself, but takes a while; until then it may still write."""
    deadline = time.monotonic() + OLD_SERVER_S
    for marker in work.glob("ready-*.json"):
        with suppress(psutil.Error, ValueError, IndexError):
            process = psutil.Process(int(marker.stem.split("-")[1]))
            if process.environ().get(DUMP_FOLDER) != str(work):
                continue
            reporter.note(f"waiting for the server of an earlier run to end (process {process.pid})")
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(5.0)


def _extract(
    cfg: Config,
    target: TargetInfo,
    assembly: Assembly,
    nonce: str,
    work: Path,
    reporter: Reporter,
    log_dir: Path,
) -> None:
    proving = Proving(assembly.folder, assembly.placement, load_lm_head(target), nonce)
    write_placement(work, [assembly.placement, proving.placement], nonce)
    proving.create()
    tail = LedgerTail(work)
    for _ in tail.poll():  # of earlier runs: taken account of already
        pass
    command = server_command(cfg, "extraction", target.path, dump=work)
    log, began = log_dir / "server.log", time.monotonic()
    reporter.note(f"starting SGLang {command.sglang_version}; log: {log}")
    with Server.start(command, log=log, timeout_s=cfg.server.startup_timeout_s, work=work) as server:
        reporter.note(f"server ready in {time.monotonic() - began:.0f} s")
        require_boundaries(server, assembly.manifest.boundaries)
        try:
            asyncio.run(_converse(cfg, server, assembly, proving, tail, nonce, reporter))
        finally:
            server.stop()
            _keep_the_rest(assembly, tail)


async def _converse(
    cfg: Config,
    server: Server,
    assembly: Assembly,
    proving: Proving,
    tail: LedgerTail,
    nonce: str,
    reporter: Reporter,
) -> None:
    # Waiting is watched by the session: a reply may take as long as it makes progress.
    async with Client(server.url, cfg.server.concurrency, timeout_s=FOREVER_S) as client:
        _record_server(assembly.manifest, cfg, server, await client.server_info())
        meter = Meter(reporter)
        session = Session(server, client, assembly, proving, tail, nonce, meter, cfg.server.stall_timeout_s)
        await session.run()


def _keep_the_rest(assembly: Assembly, tail: LedgerTail) -> None:
    """After the server's end: commits that were not looked at yet, shards that are full. What fails is met again."""
    with suppress(Eagle3Error, OSError):
        for entry in tail.poll():
            if entry.bad is None:
                assembly.accept(entry)
        assembly.collect(wait=True)
    assembly.close()


def require_boundaries(server: Server, boundaries: list[int]) -> None:
    """Raises ProofError when the plugin, reading back from the model, found other boundaries than those asked for."""
    for stream in server.ready:
        if list(stream["boundaries"]) != boundaries:
            raise ProofError(
                f"the server captures boundaries {stream['boundaries']}, and {boundaries} were asked for: every state "
                "would be that of another layer. Look at the plugin's folder on PYTHONPATH, and at the version of "
                f"SGLang ({stream['sglang_version']})."
            )


def _record_server(manifest: Manifest, cfg: Config, server: Server, info: dict[str, Any]) -> None:
    """What is effective, read back from the server."""
    names = [name for name in (*server.command.flags, *ALSO_RECORDED) if name not in NOT_RECORDED]
    flags = {name: info.get(name, server.command.flags.get(name)) for name in names}
    manifest.server_flags = json.loads(json.dumps(flags, default=str))
    manifest.sglang_version = str(server.ready[0]["sglang_version"])
    manifest.plugin_sha256 = plugin_sha256()
    manifest.nccl_env = profile_env(cfg.nccl.extraction, "nccl.extraction")


def _finish(assembly: Assembly, work: Path, reporter: Reporter) -> None:
    manifest = assembly.manifest
    manifest.complete = True
    manifest.save(assembly.folder)
    shutil.rmtree(work)
    row = {"sequences": manifest.sequences, "tokens": manifest.tokens, "gb": manifest.bytes / 1e9}
    proof = {f"proof_{when}_{k}": v for when, found in manifest.proof.items() for k, v in found.items()}
    done = {**row, "quarantined": len(manifest.quarantined), "shards": len(manifest.shards), **proof}
    reporter.log({f"extract/{name}": value for name, value in done.items()}, step=manifest.sequences)


def _standing(assembly: Assembly, out: Path) -> str:
    done, total = assembly.done_sequences - len(assembly.quarantined), len(assembly.placement)
    return f"{done} of {total} sequences are committed in {out}; the same command continues."
