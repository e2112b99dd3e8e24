"""The target in transformers: passes over new tokens of one sequence, with its cache, and the states they leave."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle3.errors import ConfigError, Eagle3Error
from eagle3.target.info import TargetInfo


@dataclass(frozen=True)
class Pass:
    states: Tensor
    """[n, K*Ht]: boundary b is the residual stream that enters layer b."""
    top: Tensor
    """[m] int64: the most likely next token after each of the last m tokens."""


class TransformersTarget:
    """One sequence at a time, greedy."""

    def __init__(
        self,
        info: TargetInfo,
        boundaries: list[int],
        device: torch.device,
        dtype: torch.dtype,
        trust_remote_code: bool = False,
    ) -> None:
        """Raises Eagle3Error where transformers can't load it, ConfigError for a boundary that it has no state of."""
        from transformers import AutoModelForCausalLM

        if max(boundaries) >= info.num_layers:
            raise ConfigError(
                f"boundaries {boundaries}: transformers keeps no state at {max(boundaries)} of a model of "
                f"{info.num_layers} layers; this drafter can only be served"
            )
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                info.path, dtype=dtype, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, ImportError) as error:
            raise Eagle3Error(f"{info.path}: transformers does not load the target ({error})") from error
        self.model = model.to(device).eval()
        self.boundaries = boundaries
        self.device = device
        self.length = 0
        self._cache: Any = None

    def begin(self) -> None:
        """Another sequence."""
        from transformers import DynamicCache

        self._cache, self.length = DynamicCache(), 0

    @torch.no_grad()
    def forward(self, ids: list[int], last: int) -> Pass:
        """New tokens, of which the most likely successors of the `last` ones are wanted."""
        given = torch.tensor([ids], device=self.device)
        out = self.model(
            given, past_key_values=self._cache, use_cache=True, output_hidden_states=True, logits_to_keep=last
        )
        self.length += len(ids)
        states = torch.cat([out.hidden_states[b][0] for b in self.boundaries], dim=-1)
        return Pass(states, out.logits[0, -last:].argmax(-1))

    def keep(self, length: int) -> None:
        """Forgets the tokens after the first `length`: drafts that were refused."""
        if length < self.length:
            self._cache.crop(length - self.length)
        self.length = length
