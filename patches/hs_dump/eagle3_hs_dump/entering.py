"""Whether what the model hands out for boundary b is what enters layer b, seen at the layer itself.

`layers_to_capture` is read back after it was set, but what a number in it means is a custom of SGLang's models: one
that captures after its layers would be off by one, in every row, and nothing else would tell. Layer b begins by norming
the residual stream. So in the first passes its norm is watched, and must give the same for the captured state.

Not watched are layers without `input_layernorm`, kernels that fuse it with something else, and layers that norm other
rows than those captured (scattered over ranks). `compared` counts what was.
"""

from typing import Any

import torch

from . import DumpError

NORM = "input_layernorm"
PASSES = 16
"""The proof's, and a few more: the long run after them pays nothing."""
ROWS = 256
"""Of a pass: enough to tell, and next to no memory."""
TOLERANCE = 0.05
"""Median over the rows of the relative error: rounding is below 0.01, a neighbouring layer far above."""


class Entering:
    """Watches the norms of the layers at the boundaries, until it has seen enough."""

    def __init__(self, layers: Any, boundaries: tuple[int, ...]) -> None:
        self.compared = 0
        """Comparisons of a boundary in a pass."""
        self._passes = PASSES
        self._boundaries = boundaries
        self._norms = {b: getattr(layers[b], NORM) for b in boundaries if b < len(layers) and hasattr(layers[b], NORM)}
        self._seen: dict[int, tuple[torch.Tensor, int]] = {}
        """Of a pass, by boundary: the first rows that the norm gave, and how many there were."""
        self._hooks = [norm.register_forward_hook(self._watch(b)) for b, norm in self._norms.items()]

    def _watch(self, boundary: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            # Of a norm that also adds, (normed, sum). A copy: the layer may go on in the same memory.
            normed = output[0] if isinstance(output, tuple) else output
            self._seen[boundary] = (normed[:ROWS].clone(), len(normed))

        return hook

    def forget(self) -> None:
        """Before a pass: what another one left."""
        self._seen = {}

    def compare(self, states: list[torch.Tensor]) -> None:
        """Raises DumpError where the captured `states` (K tensors `[T, H]`) are not what their layers normed."""
        if not self._hooks:
            return
        seen, self._seen = self._seen, {}
        try:
            for boundary, state in zip(self._boundaries, states, strict=True):
                normed, rows = seen.get(boundary, (state, 0))
                if rows == len(state) and normed.dtype == state.dtype:
                    self._require(boundary, self._norms[boundary](state[:ROWS].clone()), normed)
        finally:
            self.forget()
            self._passes -= 1
            if self._passes <= 0:
                self.stop()

    def _require(self, boundary: int, ours: torch.Tensor, normed: torch.Tensor) -> None:
        self.compared += 1
        error = (ours.float() - normed.float()).norm(dim=-1) / normed.float().norm(dim=-1)
        median = float(error.median())
        if median > TOLERANCE:  # nan, of states that are not finite, is for the writer to tell
            raise DumpError(
                f"boundary {boundary}: what the model hands out is not what enters layer {boundary} (after the layer's "
                f"norm it differs by {median:.0%} in the median row); does this SGLang count layers in another way?"
            )

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
