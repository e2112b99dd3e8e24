"""Training on the CPU at the quickstart's shape: ours, SpecForge 0.2.0 and speculators 0.9.0, in turn in one run.

    bench/pack_peers.sh .peers
    OMP_NUM_THREADS=2 PYTHONPATH=.peers:. .venv/bin/python bench/train_cpu.py
    PYTHONPATH=. .venv/bin/python bench/train_cpu.py --only eagle3 --precision bf16 --profile      # where our time goes

The drafter of SmolLM2-135M (H 576, I 1536, 9/3 heads, V 49,152, D 2,048), 3 TTT steps. Every trainer is given the same
documents, all of them in each optimiser step: forward, backward, clipping, AdamW. Each batches them in its own way
(ours and speculators pack, SpecForge pads) and has them ready before its step begins. Peers use their sdpa paths; what
SpecForge compiles itself is compiled. Run it on an idle machine: the load is printed.
"""

import argparse
import os
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from bench.peers.data import Document, Target, random_documents, random_target
from bench.peers.measure import Trainer, timed_step
from bench.peers.our_trainer import OurTrainer
from bench.peers.specforge_trainer import SpecForgeTrainer
from bench.peers.speculators_trainer import SpeculatorsTrainer
from torch.profiler import ProfilerActivity, profile

from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape

SMOLLM2 = DrafterShape(576, 1536, 9, 3, 64, 576, 3, 49152, 2048, 1e5, 8192)
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
TRAINERS: dict[str, Callable[..., Trainer]] = {
    "eagle3": OurTrainer,
    "specforge": lambda *args, **options: SpecForgeTrainer(*args, attention="sdpa", **options),
    "speculators": lambda *args, **options: SpeculatorsTrainer(*args, attention="sdpa", **options),
}


def document_lengths(tokens: int) -> list[int]:
    """About 200 tokens each, `tokens` together."""
    generator = torch.Generator().manual_seed(0)
    found: list[int] = []
    while (left := tokens - sum(found)) > 0:
        found.append(min(int(torch.randint(100, 300, (1,), generator=generator)), left))
    return found


def compare(trainers: dict[str, Trainer], documents: list[Document], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each trainer's steps: one of each a round, after two that do not count."""
    batches: dict[str, Any] = {name: trainer.batch(documents) for name, trainer in trainers.items()}
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for i in range(rounds + 2):
        for name, trainer in trainers.items():
            elapsed = timed_step(trainer, batches[name])
            if i >= 2:
                times[name].append(elapsed)
    return times


def show_profile(trainer: Trainer, target: Target, documents: list[Document]) -> None:
    batch = trainer.batch(documents)
    trainer.step(batch)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        trainer.step(batch)
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=list(PRECISIONS))
    parser.add_argument("--only", choices=TRAINERS, nargs="+", default=list(TRAINERS))
    parser.add_argument("--answers", type=float, default=0.6, help="share of a document that is response")
    parser.add_argument("--ttt-steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--profile", action="store_true", help="of one step of the first trainer")
    args = parser.parse_args()

    load = os.getloadavg()[0]
    print(f"{torch.get_num_threads()} threads, load {load:.1f}, {args.answers:.0%} answers, {args.ttt_steps} TTT steps")
    drafter = Drafter(SMOLLM2)
    for precision in args.precision:
        dtype = PRECISIONS[precision]
        target = random_target(SMOLLM2, dtype)
        for tokens in args.tokens:
            documents = random_documents(SMOLLM2, target, document_lengths(tokens), args.answers, dtype)
            trainers = {name: TRAINERS[name](drafter, target, args.ttt_steps, dtype=dtype) for name in args.only}
            if args.profile:
                return show_profile(next(iter(trainers.values())), target, documents)
            times = compare(trainers, documents, args.rounds)
            first = median(times[args.only[0]])
            for name, found in times.items():
                middle = median(found)
                print(
                    f"{precision} {tokens} tokens, {name}: {middle:.0f} ms ({min(found):.0f} to {max(found):.0f}), "
                    f"{1000 * tokens / middle:.0f} tokens/s, {middle / first:.2f} x the time of {args.only[0]}"
                )
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
