"""The part of the configuration about servers: how SGLang is run, NCCL's settings, and what is measured."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ServerFlags:
    """SGLang server flags by their long name without dashes, e.g. `mem_fraction_static: 0.1`; true is a bare flag."""

    common: dict[str, Any] = field(default_factory=dict)
    extraction: dict[str, Any] = field(default_factory=dict)
    serving: dict[str, Any] = field(default_factory=dict)


@dataclass
class ServerConfig:
    device: str = "cuda"
    """cuda or cpu."""
    tp: int = 1
    """Tensor-parallel size: GPUs a replica; on a CPU processes."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free port."""
    python: str | None = None
    """Interpreter of the environment that holds SGLang; null is this one."""
    allow_untested: bool = False
    """Extract with an SGLang outside the versions that the dump was tested with."""
    dtype: str = "bfloat16"
    flags: ServerFlags = field(default_factory=ServerFlags)
    env: dict[str, str] = field(default_factory=dict)
    """Further environment of the server process."""
    startup_timeout_s: float = 600.0
    stall_timeout_s: float = 300.0
    """No progress for this long: the server is taken for wedged."""
    max_restarts: int = 2
    """How often one extraction may replace a server that is wedged, or that died after it had made progress."""
    concurrency: int = 64
    """Requests in flight."""


@dataclass
class NcclProfile:
    name: str = "default"
    env: dict[str, str] = field(default_factory=dict)
    """NCCL_* variables of the server process; empty leaves NCCL to its defaults."""


@dataclass
class NcclConfig:
    extraction: NcclProfile = field(default_factory=NcclProfile)
    serving: NcclProfile = field(default_factory=NcclProfile)
    extra: list[str] = field(default_factory=list)
    """Variables newer than those known here: in a profile they are taken as they are."""


@dataclass
class BenchConfig:
    """What `until=bench` measures of the served target, with random tokens."""

    in_run: bool = False
    """Also measured in a run that makes a drafter, once for each profile and round, whatever else the run varies."""
    concurrency: list[int] = field(default_factory=lambda: [1, 4, 16])
    """Requests that are decoded at a time."""
    prompt_tokens: int = 32
    """Prompt of a request that is decoded."""
    decode_tokens: int = 256
    """Tokens decoded of each request."""
    prefill_prompts: int = 32
    prefill_tokens: int = 2048
    """Tokens of each prompt that is prefilled only."""
    repeats: int = 5
    """How often each is measured, in turn, after a warm-up."""
    round: int = 0
    """Which start of the server it is: a sweep over rounds shows how much one start differs from another."""
