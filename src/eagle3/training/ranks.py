"""`python -m eagle3.training.ranks JOB.json [NODE]`: the training child once for each device, started by torchrun.

What torchrun itself does not do: each rank writes to a log of its own, and what ends the training is told in one line,
with the rank that failed first and its log. Exit codes are those of the training child.
"""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3.config.schema import TrainerConfig
from eagle3.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, Eagle3Error

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

STOP_S = 50
"""How long ranks may take to save when they are asked to stop; less than whoever asks allows (pipeline/child.py)."""
TAIL_BYTES = 64 * 1024
STOPPED = (-signal.SIGTERM, EXIT_INTERRUPTED)
"""How a rank ends that was asked to."""
AT_ONCE_S = 2
"""One that is killed, and the others that then lose it, are this close; torchrun notes whole seconds."""


def rank_log(logs: Path, rank: int) -> Path:
    """Of one rank, counted over all nodes."""
    return logs / f"train.rank{rank}.log"


def log_apart(logs: Path, rank: int) -> None:
    """From here on all that this process writes goes to its own log, what libraries write below Python too."""
    descriptor = os.open(rank_log(logs, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def torchrun_arguments(cfg: TrainerConfig, node: int) -> list[str]:
    """torchrun's, before the module that it starts."""
    # Ranks have logs of their own, so torchrun's are not wanted.
    arguments = [f"--nproc-per-node={cfg.devices}", "--log-dir", os.devnull]
    if cfg.nodes == 1:
        # By its address: a machine's own name can't be resolved everywhere.
        return [*arguments, "--standalone", "--local-addr=127.0.0.1"]
    host, _, port = str(cfg.master).rpartition(":")
    return [
        *arguments,
        f"--nnodes={cfg.nodes}",
        f"--node-rank={node}",
        f"--master-addr={host}",
        f"--master-port={port}",
    ]


def environment(cfg: TrainerConfig, given: Mapping[str, str]) -> dict[str, str]:
    """What ranks get besides, wherever `given` does not have it already."""
    added = {
        "OMP_NUM_THREADS": str(max(len(os.sched_getaffinity(0)) // cfg.devices, 1)),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(STOP_S),
    }
    if cfg.nodes == 1:
        added["GLOO_SOCKET_IFNAME"] = "lo"
    return {name: value for name, value in added.items() if name not in given}


def explain(failures: "Mapping[int, ProcessFailure]", logs: Mapping[int, Path]) -> tuple[int, str]:
    """Exit code, and one line on what ended the training.

    Args:
        failures: by rank, as torchrun found them. Ranks fail because another one is gone, and torchrun then stops those
            that are left: neither is the cause.
        logs: of the ranks on this node.
    """
    said = {rank: line for rank, log in logs.items() if (line := _last_line(log, "error: ").removeprefix("error: "))}
    own = {rank: failure for rank, failure in failures.items() if failure.exitcode not in STOPPED}
    if not own:
        return EXIT_INTERRUPTED, next(iter(said.values()), "Interrupted; the same command continues.")
    for rank, line in said.items():
        if rank not in failures or rank in own:
            code = own[rank].exitcode if rank in own else EXIT_FAILED
            return code, f"{line} (rank {rank}; its log: {logs[rank]})"
    first = min(failure.timestamp for failure in own.values()) + AT_ONCE_S
    rank, failure = min(own.items(), key=lambda item: (item[1].timestamp > first, item[1].exitcode > 0, item[0]))
    log = logs[rank]
    if failure.exitcode > 0:
        last = _last_line(log) or "nothing in its log"
        return EXIT_FAILED, f"Rank {rank} ended with exit code {failure.exitcode}: {last}. Its log: {log}"
    name = signal.Signals(-failure.exitcode).name
    hint = "; the system does that when memory runs out" if name == "SIGKILL" else ""
    return EXIT_FAILED, f"Rank {rank} was ended by {name}{hint}. Its log: {log}"


def _last_line(log: Path, start: str = "") -> str:
    """The last line that is not empty and starts so, or nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip() and line.startswith(start)), "")


def main() -> int:
    """The process's exit code (errors.py)."""
    try:
        return _main(sys.argv[1:])
    except Eagle3Error as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_code


def _main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2) or not all(node.isdecimal() for node in arguments[1:]):
        raise ConfigError("usage: python -m eagle3.training.ranks JOB.json [NODE], with NODE from 0 to trainer.nodes-1")
    from eagle3.training.job import Job

    job = Job.load(Path(arguments[0]))
    cfg, node = job.config.trainer, int(arguments[1]) if len(arguments) == 2 else 0
    if node >= cfg.nodes:
        raise ConfigError(f"node {node}: trainer.nodes={cfg.nodes}, so nodes are 0 to {cfg.nodes - 1}")
    logs = {rank: rank_log(job.logs, rank) for rank in range(node * cfg.devices, (node + 1) * cfg.devices)}
    for log in logs.values():
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)  # so that nothing of an earlier start is told
    os.environ.update(environment(cfg, os.environ))

    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main([*torchrun_arguments(cfg, node), "-m", "eagle3.training.main", arguments[0]])
    except ChildFailedError as error:
        code, line = explain(error.failures, logs)
    except SignalException as error:
        code, line = EXIT_INTERRUPTED, f"Interrupted by {error.sigval.name}; the same command continues."
    except RuntimeError as error:
        if cfg.nodes == 1:
            raise
        code, line = (
            EXIT_FAILED,
            f"The {cfg.nodes} nodes did not come together at trainer.master={cfg.master} ({error}). Is node 0's "
            "address right, its port free and open, and the command started on every node?",
        )
    else:
        return EXIT_DONE
    print(f"error: {' '.join(line.split())}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
