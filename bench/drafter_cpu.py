"""Training-time test on the CPU at the quickstart's shape: tokens/s of forward and backward, on random data.

    OMP_NUM_THREADS=2 python bench/drafter_cpu.py --draft-vocab 4096 --steps 7 --precision bf16

Documents of about 200 tokens, 60% of them answers, packed to `--tokens`; the best of a few repetitions is printed, with
where the time goes. Run it on an idle machine: a second busy process costs more than its share.
"""

import argparse
import dataclasses
import time

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from eagle3.drafter.batch import Batch
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.ttt import run_ttt, target_argmax

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 576, 1536, 9, 3, 64, 49152
DOCUMENT, ANSWERS = 200, 0.6


def packed(tokens: int, generator: torch.Generator) -> Batch:
    lengths: list[int] = []
    while (left := tokens - sum(lengths)) > 0:
        length = int(torch.randint(DOCUMENT // 2, DOCUMENT * 3 // 2, (1,), generator=generator))
        lengths.append(min(length, left))
    position = torch.cat([torch.arange(n) for n in lengths])
    sizes = torch.tensor(lengths)
    document = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), sizes)
    return Batch(
        input_ids=torch.randint(VOCAB, (tokens,), generator=generator),
        loss_mask=position >= ((1 - ANSWERS) * sizes)[document.long()],
        document=document,
        position=position,
        states=torch.randn(tokens, 3 * HIDDEN, generator=generator).bfloat16(),
        final=torch.randn(tokens, HIDDEN, generator=generator).bfloat16(),
        sample_ids=torch.arange(len(lengths)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--draft-vocab", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--kind", choices=("ce", "kl", "lk"), default="ce")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--argmax", action="store_true", help="the target's choices are not known beforehand")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    drafter = Drafter(
        DrafterShape(HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, 3, VOCAB, args.draft_vocab, 1e5, 8192)
    )
    table = torch.randn(VOCAB, HIDDEN, generator=generator).bfloat16() / 10
    draft_ids = torch.randperm(VOCAB, generator=generator)[: args.draft_vocab].sort().values
    batch = packed(args.tokens, generator)
    if not args.argmax:
        batch = dataclasses.replace(batch, target_top=target_argmax(batch.final, table))
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-4, fused=True)

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = run_ttt(drafter, batch, table, table, draft_ids, args.steps, args.kind).loss(0.8)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step()
    seconds = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    share = float(batch.loss_mask.float().mean())
    setting = (
        f"{args.precision}, {args.steps} steps, D {args.draft_vocab}, {args.kind}, {torch.get_num_threads()} threads"
    )
    best = min(seconds)
    print(f"{setting}: {best:.2f} s for {args.tokens} tokens ({share:.0%} answers), {args.tokens / best:.0f} tokens/s")
    if args.profile:
        with profile(activities=[ProfilerActivity.CPU]) as found:
            step()
        print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40))


if __name__ == "__main__":
    main()
