"""What a run's configuration says of what was measured: the keys that mean something for it.

Names as in the configuration. A key that made no difference to this run (training keys of a drafter that was given, the
loads of a served evaluation where nothing was served) is left out, not compared.
"""

from collections.abc import Iterator
from typing import Any

from eagle3.comparison.figures import BENCH, EVALUATE
from eagle3.comparison.runs import SERVED, SIMULATED, Run, dataset_of, short_print
from eagle3.server.nccl_names import LABELS

GIVEN = "evaluate.drafter"
_NEVER = (
    *("name", "mode", "until", "paths.", "tracking.", "replay.", "sweep.", "layers.capture"),
    *("target.name", "target.path", "target.revision", "target.pypi", "target.trust_remote_code", "target.shape"),
    *("dataset.split", "dataset.bad_rows", "dataset.shard_gib", "dataset.tokens"),
    *("server.host", "server.port", "server.allow_untested", "server.startup_timeout_s", "server.stall_timeout_s"),
    *("server.max_restarts", "server.concurrency", "nccl.extraction.", "nccl.extra"),
    *("trainer.num_workers", "trainer.checkpoint_every", "trainer.log_every", "trainer.master"),
    *("bench.in_run", "bench.repeats", "bench.concurrency"),
)
"""Keys (or their beginnings) of where and how, and of what is known by its content: target and conversations."""
_OF_A_BENCH = ("server.", "nccl.serving.", "bench.")
_TRAINING = ("layers.boundaries", "drafter.", "loss.", "optim.", "trainer.")
_REGENERATED = ("prepare.max_new_tokens", "prepare.own_prompts")
_STAGES = ("prepare", "extract", "train")


def effective(run: Run, stage: str = EVALUATE) -> dict[str, Any]:
    """By dotted key. Target, dataset and machine are values too, each by its name and what it is known by."""
    left_out = tuple(_left_out_of_a_bench(run) if stage == BENCH else _left_out(run))
    kept = {key: value for key, value in run.config.items() if not key.startswith(_NEVER)}
    if stage == BENCH:
        kept = {key: value for key, value in kept.items() if key.startswith(_OF_A_BENCH)}
    known = dict(_known(run, stage))
    return {key: value for key, value in {**known, **kept, **known}.items() if not key.startswith(left_out)}


def _left_out_of_a_bench(run: Run) -> Iterator[str]:
    yield "server.flags.extraction"
    if run.nccl_unused:
        yield "nccl."


def _left_out(run: Run) -> Iterator[str]:
    """Beginnings of keys that mean nothing for this run."""
    yield from (key for key in run.config if key.startswith("evaluate.") and key != GIVEN)
    yield "bench."
    served, given = run.kind == SERVED, run.config.get(GIVEN) is not None
    reached = len(_STAGES) if run.conditional else _reached(run)
    extracted = not run.imported and reached > 0 and (run.kind == SIMULATED or not given)
    if not served:
        yield from ("nccl.", "server.flags.serving", "server.env")
        if not extracted:
            yield "server."
    if not extracted:
        yield from ("dataset.dtype", "server.flags.extraction")
    if run.imported:
        yield from (key for key in run.config if key.startswith("dataset.") and key != "dataset.name")
        yield from ("prepare.", "target.")
    if not run.config.get("prepare.regenerate"):
        yield from _REGENERATED
    if reached < len(_STAGES) - 1:
        yield from (*_TRAINING, GIVEN)
    elif given:
        measures = ["layers.boundaries", *["trainer.precision"] * (not served)]
        measures += ["loss.ttt_steps"] * (run.kind == SIMULATED)
        yield from (key for key in run.config if key.startswith(_TRAINING) and key not in measures)


def _reached(run: Run) -> int:
    """Which of the stages a run that was not evaluated ended with."""
    until = run.config.get("until")
    return _STAGES.index(until) if until in _STAGES else len(_STAGES) - 1


def _known(run: Run, stage: str) -> Iterator[tuple[str, Any]]:
    """What is known by its content, and by more than a name."""
    yield "target.name", f"{run.config.get('target.name')} {short_print(run.target)}"
    if stage == BENCH or run.kind == SERVED:
        machine = run.provenance.get("machine") or {}
        gpus = machine.get("gpus") or []
        yield "machine.gpu" if gpus else "machine.cpu", ", ".join(gpus) or machine.get("cpu")
    if stage == BENCH or run.kind == SERVED:
        for name, value in (run.provenance.get("nccl_env") or {}).items():  # of the shell, where no profile says it
            if name not in LABELS and (key := f"nccl.serving.env.{name}") not in run.config:
                yield key, value
    if stage == BENCH:
        return
    if not run.conditional:
        yield "until", run.config.get("until")
        if run.config.get("until") == "extract":
            yield "layers.capture", run.config.get("layers.capture") or run.config.get("layers.boundaries")
    yield "dataset.name", dataset_of(run)
    if run.config.get(GIVEN) is None:
        yield GIVEN, "trained here"
