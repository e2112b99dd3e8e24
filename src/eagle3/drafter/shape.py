"""Dimensions of a drafter: the configuration with every null filled in from the target, checked once."""

from dataclasses import dataclass, replace
from typing import Protocol

from eagle3.config.rope import check_rope
from eagle3.config.schema import DrafterConfig, RopeScaling
from eagle3.errors import ConfigError


class TargetShape(Protocol):
    """What is read of `eagle3.target.info.TargetInfo`."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rope_theta(self) -> float: ...


@dataclass(frozen=True)
class DrafterShape:
    """Of the Llama drafter that SGLang serves as `LlamaForCausalLMEagle3`."""

    hidden_size: int
    """H, of the drafter."""
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    target_hidden_size: int
    """Ht."""
    num_boundaries: int
    """K captured states of the target."""
    vocab_size: int
    """V, of the target."""
    draft_vocab_size: int
    """D."""
    rope_theta: float
    context_length: int
    """Longest sequence of the target, in tokens."""
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    """A bias on `o_proj`. SGLang's drafter has none on q, k and v, whatever its config says."""
    fc_norm: bool = False
    norm_output: bool = False
    num_layers: int = 1
    """The first reads embeddings and states; each further one reads the one before."""
    train_lm_head: bool = True
    """Else the output head is the target's rows of the draft vocabulary, and stays so."""

    @staticmethod
    def build(cfg: DrafterConfig, target: TargetShape, num_boundaries: int) -> "DrafterShape":
        """Null fields become the target's. Raises ConfigError naming the key that cannot be."""
        shape = DrafterShape(
            hidden_size=_or(cfg.hidden_size, target.hidden_size),
            intermediate_size=_or(cfg.intermediate_size, target.intermediate_size),
            num_heads=_or(cfg.num_heads, target.num_heads),
            num_kv_heads=_or(cfg.num_kv_heads, target.num_kv_heads),
            head_dim=_or(cfg.head_dim, target.head_dim),
            target_hidden_size=target.hidden_size,
            num_boundaries=num_boundaries,
            vocab_size=target.vocab_size,
            draft_vocab_size=cfg.draft_vocab_size,
            rope_theta=cfg.rope_theta if cfg.rope_theta is not None else target.rope_theta,
            context_length=target.context_length,
            rope_scaling=None if cfg.rope_scaling is None else replace(cfg.rope_scaling),
            rms_norm_eps=cfg.rms_norm_eps,
            attention_bias=cfg.attention_bias,
            fc_norm=cfg.fc_norm,
            norm_output=cfg.norm_output,
            num_layers=cfg.num_layers,
            train_lm_head=cfg.train_lm_head,
        )
        shape.check()
        return shape

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def uses_fc(self) -> bool:
        """SGLang projects the captured states only when they are not as wide as the drafter already."""
        return self.num_boundaries * self.target_hidden_size != self.hidden_size

    def check(self) -> None:
        """Raises ConfigError for a drafter that cannot be built, or that SGLang would serve as another one."""
        sizes = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
        for key in ("num_layers", *sizes, "draft_vocab_size"):
            if getattr(self, key) < 1:
                raise ConfigError(f"drafter.{key}={getattr(self, key)}: must be at least 1.")
        if self.num_boundaries < 1:
            raise ConfigError("layers.boundaries: a drafter needs at least one boundary.")
        if self.head_dim % 2:
            raise ConfigError(f"drafter.head_dim={self.head_dim}: RoPE turns pairs, so it must be even.")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"drafter.num_kv_heads={self.num_kv_heads}: does not divide drafter.num_heads={self.num_heads}."
            )
        if self.draft_vocab_size > self.vocab_size:
            raise ConfigError(
                f"drafter.draft_vocab_size={self.draft_vocab_size}: more than the target's vocabulary of "
                f"{self.vocab_size}. Set drafter.draft_vocab_size={self.vocab_size} or less."
            )
        if self.rms_norm_eps <= 0:
            raise ConfigError(f"drafter.rms_norm_eps={self.rms_norm_eps}: must be positive.")
        check_rope(self.rope_theta, self.rope_scaling)
        if not self.train_lm_head and self.hidden_size != self.target_hidden_size:
            raise ConfigError(
                f"drafter.train_lm_head=false: the target's rows are {self.target_hidden_size} wide, and "
                f"drafter.hidden_size={self.hidden_size}. Set drafter.train_lm_head=true, or leave the width away."
            )
        if self.fc_norm and not self.uses_fc:
            raise ConfigError(
                "drafter.fc_norm=true: SGLang skips fc and fc_norm where the captured states "
                f"({self.num_boundaries} x {self.target_hidden_size}) are as wide as the drafter. "
                "Set drafter.fc_norm=false, another drafter.hidden_size, or more layers.boundaries."
            )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
