"""How fast training batches are put together from shards in bfloat16 and in 8 bits, one thread, files in memory.

    python bench/read_states.py [folder, default /dev/shm/read_states]

Beside them torch's own conversion of float8 numbers, which `eagle3.data.fp8.dequantise` takes the place of.
"""

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from eagle3.data.dataset import SequenceDataset
from eagle3.data.fp8 import quantise
from eagle3.data.layout import StateShape, state_names
from eagle3.data.placement import Prompts
from eagle3.data.shards import HiddenStates
from eagle3.data.writer import write_dataset

H, LENGTH, SEQUENCES, ROUNDS = 4096, 1024, 8, 7


def best_of(work: Callable[[], object]) -> float:
    """Seconds, after one round of warming up."""
    took = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took[1:])


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/dev/shm/read_states")
    torch.set_num_threads(1)
    tokens = LENGTH * SEQUENCES
    rows = torch.randn(LENGTH, H).bfloat16()
    prompts = Prompts(
        np.zeros(tokens, np.int32),
        np.ones(tokens, np.uint8),
        np.arange(SEQUENCES + 1) * LENGTH,
        np.arange(SEQUENCES),
    )
    for dtype in ("bfloat16", "fp8_e4m3"):
        shape = StateShape(tuple(state_names([2, 16, 29])), H, dtype)
        shutil.rmtree(folder, ignore_errors=True)
        write_dataset(folder, prompts, shape, lambda _, names=shape.states: dict.fromkeys(names, rows))
        dataset = SequenceDataset(HiddenStates(folder), np.arange(SEQUENCES), [2, 16, 29])
        seconds = best_of(lambda dataset=dataset: dataset.batch(range(SEQUENCES)))
        print(f"{dtype}: {tokens / seconds:,.0f} tokens/s, {tokens * 4 * H * 2 / seconds / 1e9:.2f} GB/s of bfloat16")
    shutil.rmtree(folder)
    stored, scales = quantise(rows)

    def convert() -> torch.Tensor:
        return (stored.float() * scales[:, None]).bfloat16()

    seconds = best_of(convert)
    print(f"torch's conversion: {LENGTH * H * 2 / seconds / 1e9:.2f} GB/s of bfloat16")


if __name__ == "__main__":
    main()
