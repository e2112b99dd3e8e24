"""The least that each number of the configuration may be, and of some the most; else see `validate.py`."""

from collections.abc import Iterator
from typing import Any

from eagle3.config.schema import Config
from eagle3.errors import ConfigError

LEAST: dict[str, int] = {
    "seed": 0,
    "target.shape.hidden_size": 1,
    "target.shape.num_layers": 1,
    "target.shape.vocab_size": 2,
    "target.shape.context_length": 4,
    "server.tp": 1,
    "server.startup_timeout_s": 1,
    "server.stall_timeout_s": 1,
    "server.max_restarts": 0,
    "server.concurrency": 1,
    "dataset.limit": 2,
    "dataset.max_length": 4,
    "dataset.seed": 0,
    "dataset.tokens": 1,
    "prepare.max_new_tokens": 1,
    "prepare.own_prompts": 0,
    "drafter.num_layers": 1,
    "drafter.hidden_size": 1,
    "drafter.intermediate_size": 1,
    "drafter.num_heads": 1,
    "drafter.num_kv_heads": 1,
    "drafter.head_dim": 1,
    "drafter.draft_vocab_size": 2,
    "drafter.rope_scaling.original_max_position": 1,
    "loss.ttt_steps": 1,
    "optim.weight_decay": 0,
    "trainer.devices": 1,
    "trainer.nodes": 1,
    "trainer.epochs": 1,
    "trainer.max_steps": 1,
    "trainer.tokens_per_batch": 1,
    "trainer.accumulate": 1,
    "trainer.num_workers": 0,
    "trainer.checkpoint_every": 1,
    "trainer.log_every": 1,
    "evaluate.limit": 1,
    "evaluate.max_new_tokens": 1,
    "evaluate.concurrency": 1,
    "evaluate.temperatures": 0,
    "evaluate.rounds": 1,
    "evaluate.drafts.steps": 1,
    "evaluate.drafts.topk": 1,
    "evaluate.drafts.tokens": 2,
    "bench.concurrency": 1,
    "bench.prompt_tokens": 1,
    "bench.decode_tokens": 1,
    "bench.prefill_prompts": 1,
    "bench.prefill_tokens": 1,
    "bench.repeats": 1,
    "bench.round": 0,
}
"""Of a list, each number."""
MOST: dict[str, int] = {
    "prepare.own_prompts": 10_000_000,
    "drafter.num_layers": 64,
    "loss.ttt_steps": 64,
    "evaluate.drafts.steps": 64,
    "evaluate.drafts.topk": 64,
    "evaluate.drafts.tokens": 1024,
}
"""Ten times what anyone uses: more is a slip, and costs hours or all of the memory before it shows."""
ABOVE_ZERO = (
    "drafter.rope_theta",
    "drafter.rms_norm_eps",
    "drafter.rope_scaling.factor",
    "drafter.rope_scaling.low_freq_factor",
    "drafter.rope_scaling.high_freq_factor",
    "drafter.rope_scaling.beta_fast",
    "drafter.rope_scaling.beta_slow",
    "optim.lr",
    "optim.clip_norm",
)


def check_bounds(cfg: Config) -> None:
    """Raises ConfigError naming the first number that is too small or too large, or none."""
    for key, least in LEAST.items():
        for where, value in _values(cfg, key):
            if not value >= least:
                raise ConfigError(f"{where}: {value} is too small; give at least {least}")
    for key, most in MOST.items():
        for where, value in _values(cfg, key):
            if value > most:
                raise ConfigError(f"{where}: {value} is too large; give at most {most}")
    for key in ABOVE_ZERO:
        for where, value in _values(cfg, key):
            if not value > 0:
                raise ConfigError(f"{where}: {value} is too small; give a number above 0")


def _values(found: Any, key: str, where: str = "") -> Iterator[tuple[str, float]]:
    """(key, number) of what a key leads to, each element of a list by itself; nothing where it is null."""
    if isinstance(found, list):
        for number, each in enumerate(found):
            yield from _values(each, key, f"{where}[{number}]")
    elif found is not None and key:
        name, _, rest = key.partition(".")
        yield from _values(getattr(found, name), rest, f"{where}.{name}" if where else name)
    elif found is not None:
        yield where, found
