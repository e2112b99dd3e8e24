"""Our training step without what only a GPU has, part by part: to find what is at fault there, or what it brings."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from bench.peers.data import Document
from bench.peers.our_trainer import OurTrainer
from torch import Tensor

from eagle3.drafter import fused, losses, prefix, ttt

WITHOUT = {
    "compile": "compile: elementwise work as single operations",
    "flash": "flash: attention by plain products (slow)",
    "wide": "wide: products of bf16 factors give bf16, and are widened afterwards",
}


def _sum(total: Tensor, a: Tensor, b: Tensor) -> None:
    total += a @ b


def _logits(final: Tensor, head: Tensor, dtype: torch.dtype) -> Tensor:
    return (final.to(dtype) @ head.to(dtype).t()).float()


_PATCHES: dict[str, list[tuple[Any, str, Any]]] = {
    "compile": [(fused, "_pays", lambda tensor: False)],
    "flash": [(prefix, "_flash_fits", lambda like: False)],
    "wide": [(losses, "_add_product", _sum), (ttt, "_logits", _logits)],
}


@contextmanager
def without(names: Sequence[str]) -> Iterator[None]:
    """As if these parts were not there."""
    with ExitStack() as stack:
        for name in names:
            for module, attribute, value in _PATCHES[name]:
                stack.enter_context(mock.patch.object(module, attribute, value))
        yield


def difference(trainer: OurTrainer, documents: Sequence[Document], names: Sequence[str]) -> str:
    """Of the loss and of each gradient, with and without: the largest, relative to the gradient's norm."""
    batch = trainer.batch(documents)
    found = []
    for switched_off in ((), names):
        with without(switched_off):
            loss = trainer.forward(batch).loss
            loss.backward()
        found.append((float(loss.detach()), {n: p.grad for n, p in trainer.drafter.named_parameters()}))
        trainer.optimizer.zero_grad()
    (loss, ours), (plain, wanted) = found
    errors = {}
    for name, gradient in ours.items():
        other = wanted[name]
        assert gradient is not None
        assert other is not None
        errors[name] = float((gradient - other).norm() / other.norm())
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else float("inf"))
    return f"loss {loss:.6f} and {plain:.6f}, gradients apart by at most {errors[worst]:.2e} ({worst})"
