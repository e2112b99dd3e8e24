"""The server runs of one extraction, one after the other: a server that is lost is replaced by another."""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3.config.schema import Config
from eagle3.data.assembly import Assembly
from eagle3.data.ledger import LedgerTail
from eagle3.data.manifest import Manifest
from eagle3.data.meter import Meter
from eagle3.data.placement import write_placement
from eagle3.data.proving import Proving
from eagle3.data.session import Session, stalled
from eagle3.errors import Eagle3Error, ProofError, ServerLostError, ServerStalledError
from eagle3.metrics import Reporter
from eagle3.server.client import Client
from eagle3.server.flags import server_command
from eagle3.server.launch import Server
from eagle3.server.nccl import profile_env
from eagle3.server.patches import plugin_sha256
from eagle3.server.required import effective_flags
from eagle3.target import TargetInfo, load_lm_head

FOREVER_S = 86400.0


def extract_missing(
    cfg: Config, target: TargetInfo, assembly: Assembly, work: Path, reporter: Reporter, log_dir: Path
) -> int:
    """Everything that the assembly lacks, and the proofs before and after; gives how often a server was replaced.

    Raises:
        DataError, ServerError, ProofError: as `run_extraction`; what is committed stays.
    """
    head = load_lm_head(target)
    tail = LedgerTail(work)
    for _ in tail.poll():  # of earlier runs: taken account of already
        pass

    def serve() -> None:
        _serve(cfg, target, head, assembly, tail, reporter, log_dir / "server.log")

    return with_restarts(serve, lambda: assembly.done_sequences, cfg.server.max_restarts, reporter)


def with_restarts(serve: Callable[[], None], done: Callable[[], int], most: int, reporter: Reporter) -> int:
    """Calls `serve` until it comes to its end, again when its server is lost; gives how often again.

    One that died before anything was `done` would die again, and is not replaced. Each replacement is told.
    Raises what `serve` does, ServerLostError when more than `most` servers were to be replaced.
    """
    restarts = 0
    while True:
        before = done()
        try:
            serve()
            return restarts
        except ServerLostError as error:
            if done() == before and not isinstance(error, ServerStalledError):
                raise
            if restarts == most:
                if not most:
                    raise
                raise type(error)(f"{error}\nIt is not replaced again: server.max_restarts={most}.") from error
            restarts += 1
            reporter.note(f"{error}")
            reporter.note(f"starting another server, {restarts} of at most {most} (server.max_restarts)")
            reporter.log({"extract/restarts": restarts}, step=done())


def _serve(
    cfg: Config,
    target: TargetInfo,
    head: Tensor,
    assembly: Assembly,
    tail: LedgerTail,
    reporter: Reporter,
    log: Path,
) -> None:
    nonce, work = secrets.token_hex(4), tail.work
    proving = Proving(assembly.folder, assembly.placement, head, nonce)
    write_placement(work, [assembly.placement, proving.placement], nonce)
    proving.create()
    command = server_command(cfg, "extraction", target.path, dump=work)
    began = time.monotonic()
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
        try:
            info = await asyncio.wait_for(client.server_info(), cfg.server.stall_timeout_s)
        except TimeoutError:
            raise stalled(server, cfg.server.stall_timeout_s) from None
        _record_server(assembly.manifest, cfg, server, info)
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
    manifest.server_flags = effective_flags(server.command.flags, info)
    manifest.sglang_version = str(server.ready[0]["sglang_version"])
    manifest.plugin_sha256 = plugin_sha256()
    manifest.nccl_env = profile_env(cfg.nccl.extraction, "nccl.extraction", cfg.nccl.extra)
