"""Training on one GPU: ours, SpecForge 0.2.0 and speculators 0.9.0 in one run, at the same shapes.

    bench/pack_peers.sh .peers 3.12
    PYTHONPATH=.peers:src:. python bench/train.py                      # every case: ours first, then the peers
    PYTHONPATH=.peers:src:. python bench/train.py full half --only eagle3 --profile --check

    full   8,192 tokens a step in documents of 2,048, every token a response token
    half   the same, the first half of each document a prompt
    real   documents of mean length 500, at most 2,048, an epoch of them
    kimi   the shape of Kimi-K2.5's drafter, 4,096 tokens a step in documents of 2,048

A step is forward and backward of training-time test in bf16, clipping, and AdamW with fp32 masters; a batch is on the
device before it begins. Tokens are those of documents, padding is not counted. The share is of model FLOPs
(`eagle3.drafter.flops`) in what this GPU's matrix products reach, measured first; a peer computes more than those.

Each figure is printed as soon as it is known. What fails is told, and the rest goes on, in a new process where the GPU
no longer answers. Where ours fails, it is tried again without what only a GPU has (`--without` chooses that).
"""

import argparse
import gc
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from bench.peers.data import Document, Target, pack, random_documents, random_target, real_lengths
from bench.peers.measure import Measured, kernels, measure
from bench.peers.our_trainer import OurTrainer
from bench.peers.plainer import WITHOUT, difference, without
from bench.train_peers import LLAMA, made, run

from eagle3.drafter import losses
from eagle3.drafter.flops import Work, training_flops
from eagle3.drafter.shape import DrafterShape

KIMI = DrafterShape(7168, 18432, 64, 64, 128, 7168, 3, 163840, 32000, 50000.0, 262144)
TINY = DrafterShape(128, 256, 4, 2, 32, 128, 3, 1024, 256, 10000.0, 4096)
TTT_STEPS = 7
NAMES = ("eagle3", "specforge", "speculators")
ATTEMPTS: dict[str, list[dict[str, Any]]] = {
    "eagle3": [{}, *({"without": (name,)} for name in WITHOUT), {"without": tuple(WITHOUT)}],
    "specforge": [{}],
    # torch 2.11 can't compile its fused loss; the other is its own option.
    "speculators": [{}, {"kernels": "eager"}],
}
"""Options of each trainer's runs, to be tried where the ones before failed."""
TOLD = 8
"""Lines of a traceback."""


@dataclass(frozen=True)
class Case:
    shape: DrafterShape
    tokens: int
    longest: int
    answers: float
    real: bool = False
    """Documents of real lengths, an epoch of them; else all are the longest."""


CASES = {
    "full": Case(LLAMA, 8192, 2048, 1.0),
    "half": Case(LLAMA, 8192, 2048, 0.5),
    "real": Case(LLAMA, 8192, 2048, 1.0, real=True),
    "kimi": Case(KIMI, 4096, 2048, 1.0),
}


@dataclass(frozen=True)
class Run:
    case: str
    trainer: str
    options: dict[str, Any]

    def label(self, options: dict[str, Any]) -> str:
        told = [f"{key} {' '.join(value) if isinstance(value, tuple) else value}" for key, value in options.items()]
        return " ".join([self.trainer, *told])


def runs_of(cases: Sequence[str], trainers: Sequence[str]) -> list[Run]:
    """Ours on every case, then the peers: what is wanted most is had first."""
    runs = []
    for trainer in trainers:
        runs += [Run(case, trainer, {}) for case in cases]
        if trainer == "specforge":
            runs += [Run(case, trainer, {"compact": True}) for case in cases]
    return sorted(runs, key=lambda one: one.trainer != "eagle3")


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


class Bench:
    """What runs share."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, torch.device(args.device)
        self.peak = ceiling() if self.device.type == "cuda" else float("inf")
        self.rates: dict[str, float] = {}
        """Tokens/s of ours, by case."""
        self._target: tuple[int, Target] | None = None
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name()
            say(f"{name}, torch {torch.__version__}, bf16 products: {self.peak / 1e12:.0f} TFLOP/s")

    def case(self, name: str) -> Case:
        case = CASES[name]
        return replace(case, shape=TINY, tokens=512, longest=128) if self.args.tiny else case

    def target(self, shape: DrafterShape) -> Target:
        if self._target is None or self._target[0] != shape.hidden_size:
            self._target = None
            self._target = shape.hidden_size, random_target(shape, torch.bfloat16, made_on=self.device)
        return self._target[1]

    def documents(self, case: Case) -> list[Document]:
        if case.real:
            lengths = real_lengths(self.args.epoch * case.tokens, 500 * case.longest // 2048, case.longest)
        else:
            lengths = [case.longest] * (case.tokens // case.longest)
        return random_documents(case.shape, self.target(case.shape), lengths, case.answers, torch.bfloat16)

    def run(self, one: Run, options: dict[str, Any]) -> None:
        """Measures and prints; raises whatever a trainer raises."""
        began, case = time.perf_counter(), self.case(one.case)
        target, documents = self.target(case.shape), self.documents(case)
        steps = None if case.real else self.args.steps
        batch = pack(documents)
        work = training_flops(case.shape, Work.of(batch.loss_mask, batch.document, batch.position, TTT_STEPS))
        if one.trainer != "eagle3":
            given = {"steps": steps, "ttt_steps": TTT_STEPS, "tokens": case.tokens, "device": self.args.device}
            if self.device.type == "cpu":
                given["attention"] = "sdpa"
            found = run(one.trainer, case.shape, target, documents, **given, **options)
            self._show(one, options, found, work * (steps or 1), began)
            return
        trainer = OurTrainer(made(case.shape, self.device), target, TTT_STEPS, device=self.device)
        groups = trainer.groups(documents, case.tokens)
        with without(options.get("without", ())):
            found = measure(trainer, groups, steps)
            self.rates[one.case] = found.tokens_per_second
            self._show(one, options, found, work * (steps or 1), began)
            if self.args.profile:
                say(kernels(trainer, groups[0]))
        for name in WITHOUT if self.args.check else ():
            say(f"      gradients without {name}: {difference(trainer, groups[0], (name,))}")

    def _show(self, one: Run, options: dict[str, Any], found: Measured, work: int, began: float) -> None:
        rate, times = found.tokens_per_second, found.milliseconds
        share = work / (sum(times) / 1000) / self.peak
        compared = f"{self.rates[one.case] / rate:5.2f} x the time" if one.case in self.rates else ""
        say(
            f"{one.case:5} {one.label(options):22} {rate:>8,.0f} tokens/s  {found.median_ms:7.1f} ms  "
            f"{found.peak_bytes / 1e9:6.2f} GB  {share:6.1%} of the ceiling  {compared}"
        )
        parts = ", ".join(f"{name} {ms:.1f}" for name, ms in found.parts.items())
        say(
            f"      ms: {parts or '-'}; steps {min(times):.1f} to {max(times):.1f}; "
            f"with warm-up and compiling {time.perf_counter() - began:.0f} s"
        )


def say(text: str) -> None:
    print(text, flush=True)


def free() -> bool:
    """Gives a run's memory back. False where the GPU answers no more: a process does not recover from that."""
    gc.collect()
    if torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:
            return False
    return True


def all_runs(bench: Bench, runs: Sequence[Run]) -> None:
    number, attempt = bench.args.begin
    while number < len(runs):
        one = runs[number]
        attempts = [{**one.options, **more} for more in ATTEMPTS[one.trainer]]
        if bench.args.without and one.trainer == "eagle3":
            attempts = [{"without": tuple(bench.args.without)}]
        options, failed = attempts[attempt], False
        try:
            bench.run(one, options)
        except Exception as error:
            failed = True
            lines = [f"{type(error).__name__}: {str(error)[:300]}"]
            lines += "".join(traceback.format_tb(error.__traceback__)).rstrip().splitlines()[-TOLD:]
            say(f"{one.case:5} {one.label(options)} failed: " + "\n      ".join(lines))
        number, attempt = (number, attempt + 1) if failed and attempt + 1 < len(attempts) else (number + 1, 0)
        if not free():
            again = [value for value in sys.argv[1:] if not value.startswith("--begin=")]
            os.execv(sys.executable, [sys.executable, sys.argv[0], *again, f"--begin={number},{attempt}"])


def begin(text: str) -> tuple[int, int]:
    number, _, attempt = text.partition(",")
    return int(number), int(attempt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; all by default")
    parser.add_argument("--only", choices=NAMES, nargs="+", default=list(NAMES))
    parser.add_argument("--steps", type=int, default=12, help="timed, of documents of one length")
    parser.add_argument("--epoch", type=int, default=12, help="steps' worth of tokens of real documents")
    parser.add_argument("--profile", action="store_true", help="a step of ours by kernel")
    parser.add_argument("--check", action="store_true", help="ours against its own plainer forms, on this device")
    parser.add_argument("--without", choices=WITHOUT, nargs="+", default=[], help="; ".join(WITHOUT.values()))
    parser.add_argument("--rows", type=int, help="of logits at a time (losses.GPU_ROW_CHUNK)")
    parser.add_argument("--together", type=int, help="of the logits' gradient at a time (losses.GPU_GRADIENT_CHUNK)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a shape for trying this script out")
    parser.add_argument("--begin", type=begin, default=(0, 0), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    losses.GPU_ROW_CHUNK = args.rows or losses.GPU_ROW_CHUNK
    losses.GPU_GRADIENT_CHUNK = args.together or losses.GPU_GRADIENT_CHUNK
    all_runs(Bench(args), runs_of(args.cases or list(CASES), args.only))


if __name__ == "__main__":
    main()
