"""The three hooks: after the model is loaded, around each forward pass, and where its hidden states come out."""

import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import VERSION, DumpError
from .batch import Batch, read_batch
from .capture import captured_layers, set_boundaries, split_states
from .checks import check_arguments, check_version, effective, read_rank, streams
from .entering import Entering
from .placement import Placement, read_placement
from .staging import Staging
from .status import Status, write_ready
from .writer import Writers

log = logging.getLogger(__name__)
MIB = 1024 * 1024
SWITCH_S = 1e-4
FOLDER = "SGLANG_HS_DUMP_DIR"


class Dump:
    """Lives in the scheduler's process of each rank that writes."""

    def __init__(
        self, work: Path, placement: Placement, device: torch.device, entering: Entering, ranks: int = 1
    ) -> None:
        """`ranks` of this host write, each for itself."""
        gpu = device.type == "cuda"
        total = int(os.environ.get("SGLANG_HS_DUMP_BUFFER_MIB", "2048" if gpu else "512")) * MIB
        # One writes some 1.4 GB/s with its checksums; cores are shared with the server and with other ranks' writers.
        cores = len(os.sched_getaffinity(0)) // 2 // ranks
        writers = int(os.environ.get("SGLANG_HS_DUMP_WRITERS", str(max(2, min(8, cores)) if gpu else "1")))
        # A scheduler that waits for work spins; a thread that woke would get its turn only after 5 ms, each time.
        sys.setswitchinterval(SWITCH_S)
        self.placement = placement
        self.entering = entering
        self.staging = Staging(placement, device, total, min(64 * MIB, total // 8))
        self.writers = Writers(work, placement, self.staging, writers)
        self.pending: Batch | None = None
        self._told = False
        self._spent_s = 0.0
        self.status = Status(work, self.figures)

    def figures(self) -> dict[str, Any]:
        return {
            **self.writers.figures,
            "queue_depth": self.writers.queued,
            "buffers_in_use": self.staging.in_use,
            "buffers": self.staging.layout.count,
            "stalls": self.staging.stalls,
            "stalled_s": self.staging.stalled_seconds,
            "spent_s": self._spent_s,
            "boundaries_compared": self.entering.compared,
            "error": self.writers.error,
        }

    def guard(self, action: Callable[[], None]) -> None:
        """A dump that fails must be loud, but the forward pass goes on: SGLang would die of the exception."""
        began = time.perf_counter()
        if self.writers.error is None:
            try:
                action()
            except DumpError as error:
                self.writers.fail(str(error))
            except Exception as error:
                self.writers.fail(f"{type(error).__name__}: {error}")
        if self.writers.error is not None and not self._told:
            self._told = True
            log.error("hidden-state dump stopped: %s", self.writers.error)
            self.status.write()
        self._spent_s += time.perf_counter() - began

    def enter(self, forward_batch: Any) -> None:
        self.pending = read_batch(forward_batch, self.placement)
        self.entering.forget()

    def take(self, final: torch.Tensor, aux: Any) -> None:
        batch, self.pending = self.pending, None
        if batch is None:
            return
        states = split_states(aux, final, self.placement.hidden_size, len(self.placement.boundaries))
        if final.shape[0] < batch.rows:
            raise DumpError(f"the batch has {batch.rows} tokens but {final.shape[0]} hidden states came out")
        self.entering.compare(states[:-1])
        for block, segments in self.staging.stage(batch, states):
            self.writers.submit(block, segments)

    def leave(self) -> None:
        batch, self.pending = self.pending, None
        if batch is not None and not batch.split:
            raise DumpError("a forward pass went by without its hidden states: is a CUDA graph replayed?")


_dump: Dump | None = None


def start(runner: Any, work: Path) -> None:
    """After `ModelRunner.load_model`: sets the capture, opens the dump on a rank that writes, tells the launcher."""
    global _dump
    import sglang

    check_version(sglang.__version__)
    arguments = effective(runner.server_args)
    check_arguments(arguments)
    placement = read_placement(work)
    hidden_size = int(runner.model_config.hidden_size)
    if hidden_size != placement.hidden_size:
        raise DumpError(f"the model's hidden size is {hidden_size}, the dataset's is {placement.hidden_size}")
    boundaries = set_boundaries(runner.model, placement.boundaries)
    rank = read_rank()
    if rank.attention_tp != 0:
        return
    layers, ranks = captured_layers(runner.model), streams(arguments)
    entering = Entering(layers, placement.boundaries)
    _dump = Dump(work, placement, torch.device(runner.device), entering, ranks)
    for captured, boundary in enumerate(boundaries):
        if 0 < boundary <= len(layers):
            layers[boundary - 1].register_forward_pre_hook(_before_capture(_dump, captured))
    write_ready(
        work,
        {
            "boundaries": boundaries,
            "rank": rank.tp,
            "dp_rank": rank.attention_dp,
            "streams": ranks,
            "hidden_size": hidden_size,
            "sglang_version": sglang.__version__,
            "plugin_version": VERSION,
            "model": type(runner.model).__name__,
        },
    )


def _before_capture(dump: Dump, captured: int) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        dump.guard(lambda: dump.staging.before_capture(captured))

    return hook


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapper)


def _load_model(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(runner, *args, **kwargs)
    if not runner.is_draft_worker:
        work = Path(os.environ[FOLDER])
        try:
            start(runner, work)
        except Exception as error:
            log.exception("the hidden-state dump cannot start")
            text = str(error) if isinstance(error, DumpError) else f"{type(error).__name__}: {error}"
            write_ready(work, {"error": text})
    return result


def _forward(original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    dump = _dump
    if dump is None or runner.is_draft_worker:
        return original(runner, forward_batch, *args, **kwargs)
    dump.guard(lambda: dump.enter(forward_batch))
    result = original(runner, forward_batch, *args, **kwargs)
    dump.guard(dump.leave)
    return result


def _logits(
    original: Callable[..., Any],
    processor: Any,
    input_ids: Any,
    hidden_states: Any,
    lm_head: Any,
    logits_metadata: Any,
    aux_hidden_states: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    dump = _dump
    if dump is not None and dump.pending is not None:
        dump.guard(lambda: dump.take(hidden_states, aux_hidden_states))
    return original(processor, input_ids, hidden_states, lm_head, logits_metadata, aux_hidden_states, *args, **kwargs)


def _keep_rids(forward_batch: Any) -> None:
    """0.5.9 knows the requests of a batch only until its `ForwardBatch` is made: their names are kept from then on."""
    original = forward_batch.init_new

    def init_new(cls: type, batch: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(batch, *args, **kwargs)
        made.rids = [request.rid for request in batch.reqs or ()]
        return made

    forward_batch.init_new = classmethod(init_new)
    forward_batch.rids = None  # of one that is made otherwise, for a warm-up


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`; called in each of the server's processes."""
    if FOLDER not in os.environ:
        return
    if "sglang.srt.managers.scheduler" not in sys.modules:  # this process runs no model
        return
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

    if "rids" not in ForwardBatch.__annotations__:
        _keep_rids(ForwardBatch)
    _wrap(ModelRunner, "load_model", _load_model)
    _wrap(ModelRunner, "forward", _forward)
    _wrap(LogitsProcessor, "forward", _logits)
