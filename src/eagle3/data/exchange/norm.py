"""The target's final norm: between the last state before it, which some projects store, and `final` after it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from eagle3.errors import DataError, Eagle3Error
from eagle3.target.info import TargetInfo
from eagle3.target.weights import load_final_norm

FinalState = Literal["pre", "post"]
"""Whether a stored last state is from before the final norm or from after it."""
LARGE = 1024.0
SAMPLED_ROWS = 16
NEAR = 0.05
"""Rows after the norm have, divided by its gain, a root mean square of 1: within rounding and the norm's epsilon."""
MOST, HALF = 0.9, 0.5


@dataclass(frozen=True)
class FinalNorm:
    """`y = gain * x / sqrt(mean(x^2) + eps)`, in float32."""

    gain: Tensor
    """[H] float32: the weight, or one plus the weight where the architecture means that."""
    eps: float

    @staticmethod
    def of(info: TargetInfo) -> "FinalNorm":
        """From the weights in the target's folder, and the definition that transformers has for the architecture.

        Where transformers does not know the architecture, the weight is taken for the gain.
        Raises:
            Eagle3Error: there is no such weight, or the norm is not an RMS norm.
        """
        weight = load_final_norm(info).float()
        module = _module(info)
        if module is None:
            return FinalNorm(weight, info.rms_norm_eps)
        try:
            module.load_state_dict({"weight": weight})
            # Rows of one large value have that value as their root mean square, beside which eps is nothing.
            gain = module(torch.full((1, len(weight)), LARGE))[0]
            norm = FinalNorm(gain, float(getattr(module, "variance_epsilon", getattr(module, "eps", None)) or 0.0))
            rows = torch.randn(4, len(weight), generator=torch.Generator().manual_seed(0))
            same = torch.allclose(module(rows), norm._apply(rows), rtol=1e-4, atol=1e-5)
        except (RuntimeError, TypeError) as error:
            raise _not_rms(info, f"{type(module).__name__}: {error}") from error
        if not same:
            raise _not_rms(info, f"{type(module).__name__} is another function")
        return norm

    def _apply(self, rows: Tensor) -> Tensor:
        rows = rows.float()
        return self.gain * (rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.eps))

    def apply(self, rows: Tensor) -> Tensor:
        """`[S, H]` before the norm -> `[S, H]` bfloat16 after it; computed in float32 and rounded once."""
        return self._apply(rows).bfloat16()

    def undo(self, rows: Tensor) -> Tensor:
        """`[S, H]` after the norm -> `[S, H]` bfloat16 that the norm makes the same rows of, within their rounding.

        The length of the original row is lost, and the norm does not depend on it. Raises DataError where a gain of
        zero has lost more than that.
        """
        if bool((self.gain == 0).any()):
            raise DataError(
                "the target's final norm multiplies some dimensions with 0, so what was before it can't be told. "
                "Choose a format that stores the state after the norm (specforge)."
            )
        return (rows.float() / self.gain).bfloat16()

    def require(self, stored: FinalState, rows: Tensor, where: Path) -> None:
        """Raises DataError when the last states `[S, H]` are plainly not what they are taken for."""
        rows = rows[:: max(1, len(rows) // SAMPLED_ROWS)].float()
        used = self.gain.abs() > 1e-6 * self.gain.abs().max()
        after = _share_of_unit_rows(rows[:, used] / self.gain[used])
        if stored == "post" and after < MOST:
            raise DataError(
                f"{where}: its last states are not those after the target's final norm. Add --final pre if they are "
                "from before it, and check that --target is the model that they were made with."
            )
        # Rows that an export has divided by the gain look normed when the gain is about 1: either way they are right.
        if stored == "pre" and after > HALF and _share_of_unit_rows(rows) < HALF:
            raise DataError(
                f"{where}: its last states have been through the target's final norm already. Add --final post, so "
                "that they are not normed twice."
            )


def _share_of_unit_rows(rows: Tensor) -> float:
    return float(((rows.pow(2).mean(-1).sqrt() - 1).abs() < NEAR).float().mean())


def _module(info: TargetInfo) -> torch.nn.Module | None:
    """transformers' module of the norm, in float32 and without weights; None for an architecture it does not know."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(info.path).get_text_config()
        with torch.device("meta"):
            norm = AutoModelForCausalLM.from_config(config).get_submodule("model.norm")
    except Exception:  # whatever transformers raises for what is not its own
        return None
    return norm.to_empty(device="cpu").float().requires_grad_(False)


def _not_rms(info: TargetInfo, why: str) -> Eagle3Error:
    return Eagle3Error(
        f"{info.path}: its final norm is not an RMS norm ({why}), so states before and after it can't be told apart "
        "or converted."
    )
