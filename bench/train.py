"""Training on one GPU: ours, SpecForge 0.2.0 and speculators 0.9.0 in one run, at the same shapes.

    bench/pack_peers.sh .peers 3.12
    PYTHONPATH=.peers:src:. python bench/train.py                      # every case
    PYTHONPATH=.peers:src:. python bench/train.py full half --only eagle3

    full   8,192 tokens a step in documents of 2,048, every token a response token
    half   the same, the first half of each document a prompt
    real   documents of mean length 500, at most 2,048, an epoch of them
    kimi   the shape of Kimi-K2.5's drafter, 4,096 tokens a step in documents of 2,048

A step is forward and backward of training-time test in bf16, clipping, and AdamW with fp32 masters; a batch is on the
device before it begins. Tokens are those of documents, padding is not counted. The share is of model FLOPs
(`eagle3.drafter.flops`) in what this GPU's matrix products reach, measured first; a peer computes more than those.
"""

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from bench.peers.data import Document, Target, pack, random_documents, random_target, real_lengths
from bench.peers.measure import Measured, measure
from bench.peers.our_trainer import OurTrainer
from bench.train_peers import LLAMA, run

from eagle3.drafter.flops import Work, training_flops
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape

KIMI = DrafterShape(7168, 18432, 64, 64, 128, 7168, 3, 163840, 32000, 50000.0, 262144)
TTT_STEPS = 7
NAMES = ("eagle3", "specforge", "speculators")


@dataclass(frozen=True)
class Case:
    shape: DrafterShape
    tokens: int
    lengths: list[int] | None
    """Of a step's documents; null for an epoch of real ones."""
    answers: float


CASES = {
    "full": Case(LLAMA, 8192, [2048] * 4, 1.0),
    "half": Case(LLAMA, 8192, [2048] * 4, 0.5),
    "real": Case(LLAMA, 8192, None, 1.0),
    "kimi": Case(KIMI, 4096, [2048] * 2, 1.0),
}


def ceiling() -> float:
    """FLOPs/s of the best of the drafter's larger products in bf16, each for about half a second."""
    best = 0.0
    for m, k, n in ((8192, 4096, 28672), (8192, 14336, 4096), (8192, 8192, 8192)):
        a, b = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((m, k), (k, n)))
        for timed in (False, True):
            torch.cuda.synchronize()
            began, count = time.perf_counter(), 200
            for _ in range(count):
                _ = a @ b
            torch.cuda.synchronize()
            if timed:
                best = max(best, 2 * m * k * n * count / (time.perf_counter() - began))
    return best


def flops(shape: DrafterShape, documents: Sequence[Document]) -> int:
    batch = pack(documents)
    return training_flops(shape, Work.of(batch.loss_mask, batch.document, batch.position, TTT_STEPS))


def timed(
    name: str, case: Case, target: Target, documents: Sequence[Document], steps: int | None, options: dict[str, Any]
) -> Measured:
    if name != "eagle3":
        given = {"steps": steps, "ttt_steps": TTT_STEPS, "tokens": case.tokens, **options}
        return run(name, case.shape, target, documents, **given)
    trainer = OurTrainer(Drafter(case.shape), target, TTT_STEPS, device="cuda")
    found = measure(trainer, trainer.groups(documents, case.tokens), steps)
    del trainer
    gc.collect()
    torch.cuda.empty_cache()
    return found


def show(name: str, case: str, found: Measured, work: int, peak: float, first: float) -> None:
    rate, seconds = found.tokens_per_second, sum(found.milliseconds) / 1000
    print(
        f"{case:5} {name:22} {rate:>8,.0f} tokens/s  {found.median_ms:7.1f} ms  {found.peak_bytes / 1e9:6.1f} GB  "
        f"{work / seconds / peak:6.1%} of the ceiling  {first / rate:5.2f} x the time",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; all by default")
    parser.add_argument("--only", choices=NAMES, nargs="+", default=list(NAMES))
    parser.add_argument("--steps", type=int, default=12, help="timed, of documents of one length")
    parser.add_argument("--epoch", type=int, default=12, help="steps' worth of tokens of real documents")
    args = parser.parse_args()
    if unknown := set(args.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    peak = ceiling()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16 products: {peak / 1e12:.0f} TFLOP/s",
        flush=True,
    )
    targets: dict[int, Target] = {}
    for name in args.cases or CASES:
        case = CASES[name]
        shape, width = case.shape, case.shape.hidden_size
        if width not in targets:
            targets = {width: random_target(shape, torch.bfloat16)}
        lengths = case.lengths or real_lengths(args.epoch * case.tokens)
        documents = random_documents(shape, targets[width], lengths, case.answers, torch.bfloat16)
        steps = args.steps if case.lengths else None
        work = flops(shape, documents) * (steps or 1)
        runs: list[tuple[str, dict[str, Any]]] = [(one, {}) for one in args.only]
        if "specforge" in args.only:
            runs.append(("specforge", {"compact": True}))
        first = 0.0
        for one, options in runs:
            began, label = time.perf_counter(), one + (" (compact teacher)" if options else "")
            try:
                found = timed(one, case, targets[width], documents, steps, options)
            except torch.OutOfMemoryError as error:
                print(f"{name:5} {label:22} out of memory: {str(error).splitlines()[0]}", flush=True)
                continue
            first = first or found.tokens_per_second
            show(label, name, found, work, peak, first)
            print(f"      with warm-up and compiling {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
