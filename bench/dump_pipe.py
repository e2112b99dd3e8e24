"""The dump's way from GPU memory to shards, without SGLang: random states, a matrix product for the model's work.

    python bench/dump_pipe.py [--folder /dev/shm/dump_pipe] [--writers 4 8] [--passes 24]

Prints tokens/s with and without the dump, stalls and peak GPU memory, and checks rows and checksums. What a real server
adds is not in it.
"""

import argparse
import itertools
import shutil
import sys
import time
import zlib
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "patches" / "hs_dump")]

from eagle3_hs_dump.batch import Batch, Segment  # noqa: E402
from eagle3_hs_dump.placement import read_placement  # noqa: E402
from eagle3_hs_dump.quantise import quantise  # noqa: E402
from eagle3_hs_dump.staging import Staging  # noqa: E402
from eagle3_hs_dump.writer import Writers  # noqa: E402
from tests.e2e.placing import place  # noqa: E402

H, BOUNDARIES, BATCH, LENGTH, WORK = 2048, [2, 8, 13], 16384, 512, 32
MIB = 1024 * 1024


def crc32(*tensors: torch.Tensor) -> int:
    crc = 0
    for tensor in tensors:
        crc = zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().tobytes(), crc)
    return crc


def as_stored(state: torch.Tensor, dtype: str) -> int:
    """Checksum of a state on the CPU, converted there where it is to be in 8 bits."""
    if dtype == "bfloat16":
        return crc32(state)
    return crc32(*quantise(state, state.float().abs().amax(-1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/dump_pipe"))
    parser.add_argument("--writers", type=int, nargs="+", default=[4])
    parser.add_argument("--passes", type=int, default=24, help="a round")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "fp8_e4m3"])
    args = parser.parse_args()
    folder, passes_a_round, dtypes = args.folder, args.passes, list(map(str, args.dtypes))
    device = torch.device("cuda")
    per_batch = BATCH // LENGTH
    ids = torch.randint(0, 30000, (passes_a_round * per_batch, LENGTH))
    ids_there = ids.to(device)
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    for packed, dtype in itertools.product((False, True), dtypes):
        shutil.rmtree(folder, ignore_errors=True)
        placed = place(folder, dict(enumerate(ids.tolist())), BOUNDARIES, H, shards=6, dtypes=(dtype,))
        placement = read_placement(placed.work)
        sums = {}
        for count in (n for writers in args.writers for n in (0, writers, 0, writers)):
            staging = Staging(placement, device, 2048 * MIB, 64 * MIB) if count else None
            writers = Writers(placed.work, placement, staging, count) if staging else None
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, began = torch.cuda.memory_allocated(), time.perf_counter()
            passes: list[torch.cuda.Event] = []
            for number in range(passes_a_round):
                if number >= 2:  # SGLang prepares one batch while another runs
                    passes[number - 2].synchronize()
                for _ in range(WORK):
                    _ = a @ a
                seeded = torch.Generator(device).manual_seed(number)
                aux = torch.randn(BATCH, 3 * H, device=device, dtype=torch.bfloat16, generator=seeded)
                final = aux[:, :H] * 2
                states = list(aux.split(H, dim=-1)) if packed else [s.contiguous() for s in aux.split(H, dim=-1)]
                batch_ids = ids_there[number * per_batch : (number + 1) * per_batch].flatten()
                if staging and writers:
                    segments = [Segment(number * per_batch + k, 0, k * LENGTH, LENGTH) for k in range(per_batch)]
                    for block, moved in staging.stage(Batch(batch_ids, segments, BATCH, False), [*states, final]):
                        writers.submit(block, moved)
                    if not sums.get(number):
                        sums[number] = [as_stored(s.cpu(), dtype) for s in (*states, final)] if number < 2 else [0]
                del aux, final, states
                passes.append(torch.cuda.Event())
                passes[-1].record()
            torch.cuda.synchronize()
            forward = time.perf_counter() - began
            while staging and staging.in_use:
                time.sleep(0.001)
            total = time.perf_counter() - began
            tokens = passes_a_round * BATCH
            extra = (torch.cuda.max_memory_allocated() - before) / MIB
            print(
                f"packed={packed} {dtype} writers={count}: {tokens / forward:,.0f} tokens/s, "
                f"{tokens / total:,.0f} to the end, peak {extra:.0f} MiB"
                + (
                    f", stalls {staging.stalls} ({staging.stalled_seconds:.2f} s), error {writers.error}"
                    if staging and writers
                    else ""
                ),
                flush=True,
            )
        ledger = placed.ledger()
        assert len(ledger) == len(ids), len(ledger)
        for number in (0, 1):  # the rows of a batch in a file are those of the batch
            rows = [placed.read(number * per_batch + k) for k in range(per_batch)]
            for state, wanted in zip(placed.states, sums[number], strict=True):
                names = [state, *(f"scale.{state}" for _ in range(dtype == "fp8_e4m3"))]
                assert crc32(*(torch.cat([r[name] for r in rows]) for name in names)) == wanted, (number, state)
        for sample, row in list(ledger.items())[::37]:
            stored = placed.read(sample)
            parts = [[stored[n] for n in (state, f"scale.{state}") if n in stored] for state in placed.states]
            assert row["crc"] == [crc32(*part) for part in parts], sample
        print(f"packed={packed} {dtype}: {len(ledger)} sequences are right")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
