"""SpecForge 0.2.0 and speculators 0.9.0 on one GPU, at the shape of Llama-3.1-8B's drafter.

    bench/pack_peers.sh .peers 3.12
    PYTHONPATH=.peers:src:. python bench/train_peers.py specforge --lengths real

A step is forward and backward of training-time test in bf16, clipping, and AdamW with fp32 masters. Every token is a
response token. `bench/train.py` calls `run` for the peers' side of its comparison.
"""

import argparse
import gc
from collections.abc import Sequence
from typing import Any

import torch
from bench.peers.data import Document, Target, random_documents, random_target, real_lengths
from bench.peers.measure import Measured, Trainer, measure
from bench.peers.specforge_trainer import SpecForgeTrainer
from bench.peers.speculators_trainer import SpeculatorsTrainer

from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape

LLAMA = DrafterShape(4096, 14336, 32, 8, 128, 4096, 3, 128256, 32000, 500000.0, 131072)


def made(shape: DrafterShape, device: torch.device | str) -> Drafter:
    """A random drafter, made on a device: there its weights take no time."""
    with torch.device(device):
        return Drafter(shape)


def run(
    peer: str,
    shape: DrafterShape,
    target: Target,
    documents: Sequence[Document],
    *,
    steps: int | None = None,
    ttt_steps: int = 7,
    tokens: int = 8192,
    device: str = "cuda",
    **options: Any,
) -> Measured:
    """Times a peer over the documents, which it batches in its own way.

    Args:
        peer: specforge (rows of one document, padded to the longest) or speculators (packed into rows of `tokens`).
        steps: optimiser steps to time; null is one epoch, which is what to compare unequal documents by.
        tokens: most tokens a step, a peer's padding counted.
        options: of the peer's trainer, such as compact=True or attention="sdpa".
    """
    drafter = made(shape, device).cpu()
    trainer: Trainer
    if peer == "specforge":
        trainer = SpecForgeTrainer(drafter, target, ttt_steps, device=device, **options)
    elif peer == "speculators":
        trainer = SpeculatorsTrainer(drafter, target, ttt_steps, device=device, rows=tokens, **options)
    else:
        raise ValueError(f"peer={peer!r}: must be specforge or speculators")
    found = measure(trainer, trainer.groups(documents, tokens), steps)
    del trainer
    gc.collect()
    torch.cuda.empty_cache()  # the next one's peak is its own
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("specforge", "speculators"))
    parser.add_argument("--lengths", choices=("full", "real"), default="full", help="all 2,048, or mean 500")
    parser.add_argument("--steps", type=int, default=16, help="of 8,192 tokens; real lengths are timed over an epoch")
    parser.add_argument("--ttt-steps", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--compact", action="store_true", help="SpecForge's compact_teacher")
    args = parser.parse_args()

    full = args.lengths == "full"
    lengths = [2048] * (args.tokens // 2048) if full else real_lengths(args.steps * args.tokens)
    target = random_target(LLAMA, torch.bfloat16, made_on="cuda")
    documents = random_documents(LLAMA, target, lengths, answers=1.0, dtype=torch.bfloat16)
    options: dict[str, Any] = {"compact": True} if args.compact else {}
    found = run(
        args.peer,
        LLAMA,
        target,
        documents,
        steps=args.steps if full else None,
        ttt_steps=args.ttt_steps,
        tokens=args.tokens,
        **options,
    )
    print(
        f"{found.name}, {args.lengths} lengths, {args.ttt_steps} steps: {found.median_ms:.1f} ms (median of "
        f"{len(found.milliseconds)}), {found.tokens_per_second:.0f} useful tokens/s, "
        f"{found.peak_bytes / 1e9:.1f} GB at the peak"
    )


if __name__ == "__main__":
    main()
