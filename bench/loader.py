"""Reading speed of the training loader beside that of speculators 0.9.0, on the same states; and the time to start.

    python bench/loader.py --peer FOLDER              # FOLDER: speculators 0.9.0 and hs-connectors 0.9.0, --no-deps
    python bench/loader.py --peer FOLDER --folder /dev/shm/bench --tokens 20000 --rounds 7

Both loaders run in one process, epoch by epoch in turn, on files that were read before (warm cache): ours on a dataset
of shards, theirs on what `eagle3 export-data` writes of it, each with batches of at most 8,192 tokens and with the
number of workers that suits it best. An epoch reads the dataset several times over, so that it is long enough without
taking more room. Counted are real tokens, not padding, from the first to the last batch of an epoch.
The time to start is that to read the index, and that to have split, packing and loaders ready for the first of ten
epochs, of up to 100,000 sequences whose states are holes. Run it on an idle machine.
"""

import argparse
import dataclasses
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eagle3.data.datamodule import HiddenStatesData, LoaderSettings
from eagle3.data.dataset import SequenceDataset
from eagle3.data.exchange import speculators
from eagle3.data.exchange.exporting import export_data
from eagle3.data.layout import StateShape, state_names
from eagle3.data.loader import PackedLoader
from eagle3.data.manifest import ShardEntry
from eagle3.data.packing import Packing
from eagle3.data.placement import PROMPTS, Prompts, place
from eagle3.data.prepare import save_prompts
from eagle3.data.shards import HiddenStates
from eagle3.data.skeleton import create_skeleton
from eagle3.data.writer import blank_manifest, write_dataset

LAYERS = 61
BOUNDARIES = [3, 31, 59]
BUDGET = 8192
SEED = 0


class Quiet:
    def log(self, values: dict[str, Any], step: int | None = None) -> None: ...

    def progress(self, done: float, total: float, **fields: Any) -> None: ...

    def note(self, text: str) -> None: ...


def made_prompts(sequences: int, mean: int) -> Prompts:
    """Lengths spread like those of conversations: a gamma distribution, 16 to 2,048."""
    generator = np.random.default_rng(SEED)
    lengths = generator.gamma(2.0, mean / 2.0, sequences).astype(np.int64).clip(16, 2048)
    T = int(lengths.sum())
    return Prompts(
        input_ids=generator.integers(0, 100_000, T, dtype=np.int32),
        loss_mask=(generator.random(T) < 0.5).astype(np.uint8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        sample_ids=np.arange(sequences, dtype=np.int64),
    )


def write_both(folder: Path, tokens: int, mean: int, hidden: int, repeats: int) -> None:
    """`ours` and `theirs`; theirs has each file under `repeats` names."""
    prompts = made_prompts(max(2, tokens // mean), mean)
    # With the state before the norm there is nothing to undo, and no target is needed.
    shape = StateShape(tuple(state_names([*BOUNDARIES, LAYERS])), hidden)
    generator = torch.Generator().manual_seed(SEED)

    def states(i: int) -> dict[str, torch.Tensor]:
        size = (int(prompts.lengths[i]), hidden)
        return {name: torch.randn(size, generator=generator).bfloat16() for name in shape.states}

    manifest = write_dataset(folder / "all", prompts, shape, states, shard_gib=0.5)
    dataclasses.replace(manifest, num_layers=LAYERS).save(folder / "all")
    export_data(folder / "all", folder / "theirs", speculators.FORMAT, Quiet())
    source = HiddenStates(folder / "all")
    kept = StateShape(tuple(state_names(BOUNDARIES)), hidden)
    write_dataset(folder / "ours", prompts, kept, lambda i: source.read(i, list(kept.states)), shard_gib=0.5)
    shutil.rmtree(folder / "all")
    n = len(source)
    for copy in range(1, repeats):
        for i in range(n):
            name = speculators.FORMAT.file(copy * n + i)
            (folder / "theirs" / name).hardlink_to(folder / "theirs" / speculators.FORMAT.file(i))
    rows = list(zip(*by_sequence(prompts), strict=True))
    speculators.finish(folder / "theirs", iter(rows * repeats), n * repeats)


def by_sequence(prompts: Prompts) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(ids, masks) of each sequence."""
    inner = prompts.offsets[1:-1]
    return np.split(prompts.input_ids, inner), np.split(prompts.loss_mask, inner)


def our_loader(folder: Path, repeats: int, workers: int) -> Callable[[], Iterator[int]]:
    states = HiddenStates(folder)
    dataset = SequenceDataset(states, np.tile(np.arange(len(states)), repeats), BOUNDARIES)
    packing = Packing(dataset.lengths, BUDGET, SEED, epochs=1)
    scored = torch.zeros(len(dataset), 3, dtype=torch.int64)
    loader = PackedLoader(dataset, packing, scored, num_workers=workers)

    def epoch() -> Iterator[int]:
        loader.sampler.handed_out = 0
        return (batch.tokens for batch in loader)

    return epoch


def their_loader(folder: Path, hidden: int, workers: int) -> Callable[[], Iterator[int]]:
    from speculators.models.eagle3.data import shift_batch  # pyright: ignore[reportMissingImports]
    from speculators.train.dataloader import create_train_val_loaders  # pyright: ignore[reportMissingImports]

    loader, _ = create_train_val_loaders(
        data_path=str(folder),
        total_seq_len=BUDGET,
        hidden_states_dtype=torch.bfloat16,
        vllm_endpoint="",
        on_missing="raise",
        verifier_name_or_path="",
        request_timeout=None,
        max_retries=0,
        generation_validation_retries=0,
        max_consecutive_generation_failures=1,
        hidden_size=hidden,
        num_target_layers=len(BOUNDARIES),
        num_workers=workers,
        prefetch_factor=2,  # theirs is 4, which holds 4 GB of batches with two workers
        preprocess=shift_batch,
        train_data_ratio=0.99,
    )
    return lambda: (int((batch["document_ids"] >= 0).sum()) for batch in loader)


def timed(epoch: Callable[[], Iterator[int]]) -> float:
    """tokens/s of an epoch."""
    began, tokens = time.perf_counter(), 0
    for count in epoch():
        tokens += count
    return tokens / (time.perf_counter() - began)


def compare(folder: Path, hidden: int, repeats: int, rounds: int, workers: list[int]) -> dict[str, Any]:
    sides: dict[str, Callable[[], Iterator[int]]] = {}
    tried: dict[str, dict[int, float]] = {"ours": {}, "speculators": {}}
    for count in workers:
        for name, make in (
            ("ours", lambda n: our_loader(folder / "ours", repeats, n)),
            ("speculators", lambda n: their_loader(folder / "theirs", hidden, n)),
        ):
            epoch = make(count)
            timed(epoch)  # starts workers, warms the cache
            tried[name][count] = timed(epoch)
            if tried[name][count] == max(tried[name].values()):
                sides[name] = epoch
            print(f"  {name}, {count} workers: {tried[name][count]:,.0f} tokens/s", flush=True)
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, epoch in sides.items():
            figures[name].append(timed(epoch))
        ratio = figures["ours"][-1] / figures["speculators"][-1]
        print(
            "  " + ", ".join(f"{name} {rate[-1]:,.0f}" for name, rate in figures.items()) + f": {ratio:.2f}", flush=True
        )
    medians = {name: statistics.median(rates) for name, rates in figures.items()}
    ratios = [a / b for a, b in zip(figures["ours"], figures["speculators"], strict=True)]
    return {
        "tokens_per_s": figures,
        "median": medians,
        "workers": {name: max(found, key=lambda n: found[n]) for name, found in tried.items()},
        "ratio": {"of medians": medians["ours"] / medians["speculators"], "least": min(ratios)},
    }


def start_up(folder: Path, sequences: int, mean: int, hidden: int) -> dict[str, float]:
    """Seconds to read the index, and to have everything ready for the first batch; the states are holes."""
    prompts = made_prompts(sequences, mean)
    shape = StateShape(tuple(state_names(BOUNDARIES)), hidden)
    placement = place(prompts, shape, 2.0, context_length=1 << 20)
    manifest = blank_manifest(shape, placement, {"name": "none", "source": "local", "fingerprint": ""})
    folder.mkdir()
    for plan in placement.shards:
        create_skeleton(folder / plan.file, plan.layout, placement.index(plan))
        layout = plan.layout
        manifest.shards.append(ShardEntry(plan.file, layout.sequences, layout.tokens, layout.size, sha256=""))
    manifest.replace(manifest.shards)
    manifest.complete = True
    manifest.save(folder)
    held_out = (np.arange(sequences) % 10 == 0).astype(np.uint8)
    save_prompts(folder / PROMPTS, *by_sequence(prompts), prompts.sample_ids.tolist(), held_out)
    settings = LoaderSettings(BUDGET, accumulate=1, epochs=10, steps=7, seed=SEED)
    took: dict[str, list[float]] = {"index": [], "ready": []}
    for _ in range(5):
        began = time.perf_counter()
        HiddenStates(folder)
        took["index"].append(time.perf_counter() - began)
        began = time.perf_counter()
        HiddenStatesData(folder, folder, BOUNDARIES, settings)
        took["ready"].append(time.perf_counter() - began)
    shutil.rmtree(folder)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="folder of speculators 0.9.0 and hs-connectors 0.9.0")
    parser.add_argument("--folder", type=Path, help="where the data goes; a temporary one if left away")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--mean", type=int, default=500, help="tokens of a sequence")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--repeats", type=int, default=10, help="how often an epoch reads the dataset")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", default="1,2", help="numbers of workers that each side is tried with")
    args = parser.parse_args()
    sys.path.insert(0, str(args.peer))
    base = Path(tempfile.mkdtemp(prefix="bench-loader-", dir=args.folder))
    try:
        started = {n: start_up(base / "many", n, args.mean, args.hidden) for n in (1000, 10_000, 100_000)}
        for n, took in started.items():
            print(f"  {n:,} sequences: index {took['index']:.3f} s, ready for the first batch {took['ready']:.3f} s")
        write_both(base, args.tokens, args.mean, args.hidden, args.repeats)
        workers = [int(n) for n in args.workers.split(",")]
        found = compare(base, args.hidden, args.repeats, args.rounds, workers)
    finally:
        shutil.rmtree(base)
    found |= {
        "start_s": started,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
