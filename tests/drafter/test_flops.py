"""Model FLOPs against counting product by product, position by position; and peaks of devices."""

from dataclasses import replace

import pytest
import torch
from tests.drafter.cases import SHAPE

from eagle3.drafter.flops import Work, training_flops
from eagle3.drafter.shape import DrafterShape

MASKS = ([0, 0, 0, 1, 1, 1, 1], [0, 1], [1] * 9, [0] * 5, [0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0])


def by_hand(shape: DrafterShape, masks: list[list[int]], steps: int) -> int:
    """Every product of the definition: (multiply-adds, does its input need a gradient)."""
    products: list[tuple[int, bool]] = []
    H, Ht, Q, KV = shape.hidden_size, shape.target_hidden_size, shape.q_size, shape.kv_size
    for mask in masks:
        length = len(mask)
        scored = [[t + 2 + k < length and bool(mask[t + 2 + k]) for t in range(length)] for k in range(steps)]
        last = max((t for t in range(length) for k in range(steps) if scored[k][t]), default=-1)
        for _ in range(last + 1):  # the states and the embedding, once for all steps; step 0's key and value
            if shape.uses_fc:
                products.append((shape.num_boundaries * Ht * H, False))
            if Ht != H:
                products.append((Ht * H, False))
            products.append((H * (Q + 2 * KV), Ht != H))
            products.append((H * 2 * KV, True))
        # Of further layers the same but for the embedding; their step-0 keys are the layer before's results.
        for _ in range((shape.num_layers - 1) * (last + 1)):
            products.append((H * 2 * KV, True))
        for _ in range(shape.num_layers - 1):
            for t in range(last + 1):
                products += [(H * Q, True), *[(Q, True), (Q, True)] * (t + 1)]
                products += [(Q * H, True), (3 * H * shape.intermediate_size, True)]
        for k in range(steps):
            for t in range(length):
                if not any(scored[j][t] for j in range(k, steps)):
                    continue
                for _ in range(shape.num_layers if k else 1):
                    products.append((H * Q, True))
                    if k:
                        products.append((H * 2 * KV, True))
                    for _ in range(t + 1 + k):  # keys: step 0's up to t, and those that steps 1 to k made at t
                        products += [(Q, True), (Q, True)]
                    products += [(Q * H, True), (3 * H * shape.intermediate_size, True)]
                if scored[k][t]:
                    # Of a frozen head it is the gradient to the weight that is not needed.
                    products.append((H * shape.draft_vocab_size, shape.train_lm_head))
    return sum(2 * n * (3 if own else 2) for n, own in products)


def work_of(masks: list[list[int]], steps: int) -> Work:
    mask = torch.tensor([m for one in masks for m in one], dtype=torch.bool)
    document = torch.tensor([n for n, one in enumerate(masks) for _ in one], dtype=torch.int32)
    position = torch.tensor([t for one in masks for t in range(len(one))], dtype=torch.int64)
    return Work.of(mask, document, position, steps)


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        replace(SHAPE, hidden_size=8),
        replace(SHAPE, num_boundaries=1),
        replace(SHAPE, num_layers=3),
        replace(SHAPE, train_lm_head=False),
    ],
    ids=["same width", "another width", "no fc", "three layers", "frozen head"],
)
def test_every_product_once(shape: DrafterShape, steps: int) -> None:
    masks = [list(mask) for mask in MASKS]
    assert training_flops(shape, work_of(masks, steps)) == by_hand(shape, masks, steps)


def test_prompts_cost_little_and_padding_nothing() -> None:
    answers, prompts = work_of([[1] * 40], 3), work_of([[0] * 20 + [1] * 20], 3)
    assert training_flops(SHAPE, prompts) < training_flops(SHAPE, answers)
    assert work_of([[1] * 40, [0] * 30], 3) == answers
    assert training_flops(SHAPE, work_of([[0] * 30], 3)) == 0
    assert training_flops(SHAPE, work_of([], 3)) == 0


def test_a_token_of_llama_31_8b_at_seven_steps() -> None:
    """About 16 GFLOP, of which the MLP and the output head have five sixths."""
    shape = DrafterShape(4096, 14336, 32, 8, 128, 4096, 3, 128256, 32000, 500000.0, 131072)
    tokens = 8192
    position = torch.arange(tokens) % 2048
    work = Work.of(torch.ones(tokens, dtype=torch.bool), torch.arange(tokens) // 2048, position, 7)
    a_token = training_flops(shape, work) / tokens
    assert a_token == pytest.approx(16.0e9, rel=0.05)
