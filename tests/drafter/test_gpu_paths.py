"""What runs on a GPU alone, as far as it can be had on a CPU: spans for FlashAttention, and what is compiled.

With a GPU the same tests use FlashAttention itself.
"""

import dataclasses
from typing import Any

import pytest
import torch
from tests.drafter.cases import Case, make_case
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from eagle3.drafter import fused, prefix, ttt
from eagle3.drafter.plan import Plan

TURNS = [
    [0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0],
    [1, 1, 1, 1, 1, 1, 1],
    [0, 0, 0],
    [0, 0, 0, 0, 1],
    [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
]
ANSWERS = [[0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 1]]
ONE_EACH = [[0, 0, 1], [1, 1, 1, 0, 0]]
"""One query a document, for which FlashAttention has a path of its own."""
ALL = pytest.mark.parametrize("masks", [TURNS, ANSWERS, ONE_EACH], ids=["gaps", "no-gaps", "one-each"])
DEPTHS = pytest.mark.parametrize("num_layers", [1, 2])


class FlashStandIn:
    """FlashAttention's two operators in plain loops: this machine has no GPU."""

    @staticmethod
    def _probabilities(
        q: Tensor, k: Tensor, starts: Tensor, key_starts: Tensor, scale: float, lse: Tensor | None
    ) -> list[tuple[slice, slice, Tensor, Tensor]]:
        group = q.shape[1] // k.shape[1]
        found = []
        for i in range(len(starts) - 1):
            rows = slice(int(starts[i]), int(starts[i + 1]))
            cols = slice(int(key_starts[i]), int(key_starts[i + 1]))
            n, m = rows.stop - rows.start, cols.stop - cols.start
            logits = torch.einsum("qhd,khd->hqk", q[rows], k[cols].repeat_interleave(group, 1)) * scale
            logits = logits.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), float("-inf"))
            own = logits.logsumexp(-1) if lse is None else lse[:, rows]
            found.append((rows, cols, (logits - own[..., None]).exp(), own))
        return found

    def _flash_attention_forward(
        self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, key_starts: Tensor, *args: Any, scale: float
    ) -> tuple[Tensor, ...]:
        assert args == (max(int(starts.diff().max()), 2), int(key_starts.diff().max()), 0.0, True, False)
        out, lse = torch.full_like(q, float("nan")), q.new_empty(q.shape[1], len(q))
        for rows, cols, p, own in self._probabilities(q, k, starts, key_starts, scale, None):
            out[rows] = torch.einsum("hqk,khd->qhd", p, v[cols].repeat_interleave(q.shape[1] // k.shape[1], 1))
            lse[:, rows] = own
        return out, lse, torch.empty(1), torch.empty(2), torch.empty(0)

    def _flash_attention_backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        starts: Tensor,
        key_starts: Tensor,
        *args: Any,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert [len(state) for state in args[-2:]] == [1, 2], "what the forward kept"
        group = q.shape[1] // k.shape[1]
        d_q, d_k, d_v = (torch.zeros_like(x) for x in (q, k, v))
        delta = (grad * out).sum(-1)
        for rows, cols, p, _ in self._probabilities(q, k, starts, key_starts, scale, lse):
            d_p = torch.einsum("qhd,khd->hqk", grad[rows], v[cols].repeat_interleave(group, 1))
            d_s = p * (d_p - delta[rows].t()[..., None]) * scale
            d_q[rows] = torch.einsum("hqk,khd->qhd", d_s, k[cols].repeat_interleave(group, 1))
            for total, rest in ((d_k, torch.einsum("hqk,qhd->khd", d_s, q[rows])),
                                (d_v, torch.einsum("hqk,qhd->khd", p, grad[rows]))):  # fmt: skip
                total[cols] = rest.unflatten(1, (-1, group)).sum(2)
        return d_q, d_k, d_v


def gradients(case: Case, steps: int, **options: Any) -> list[Tensor]:
    case.drafter.zero_grad()
    found = case.run(steps, **options)
    found.loss.backward()
    return [found.loss_sum, *(p.grad.clone() for p in case.drafter.parameters() if p.grad is not None)]


@ALL
@DEPTHS
def test_spans_give_what_plain_products_give(
    masks: list[list[int]], num_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(masks, seed=3, num_layers=num_layers)
    plan = Plan.of(case.batch, 4)
    assert (plan.spans.place is None) == (masks is not TURNS)
    wanted = gradients(case, 4)
    monkeypatch.setattr(prefix, "_FLASH", FlashStandIn())
    monkeypatch.setattr(ttt, "prefix_of", lambda queries, like: prefix.Flash(queries.spans))
    torch.testing.assert_close(gradients(case, 4), wanted)


@DEPTHS
def test_compiled_functions_give_what_is_written_and_are_not_compiled_for_each_batch(
    num_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = CompileCounterWithBackend("aot_eager")
    compiled: dict[Any, Any] = {}

    def compile_once(function: Any) -> Any:
        return compiled.setdefault(function, torch.compile(function, backend=backend))

    torch._dynamo.reset()
    cases = [make_case([[0] * a + [1] * b for b in (9 + a, 17)], seed=a, num_layers=num_layers) for a in range(2, 8)]
    wanted = [gradients(case, 4) for case in cases]
    monkeypatch.setattr(fused, "_pays", lambda tensor: True)
    monkeypatch.setattr(fused, "_compiled", compile_once)
    counts = []
    for case, plain in zip(cases, wanted, strict=True):
        torch.testing.assert_close(gradients(case, 4), plain)
        counts.append(backend.frame_count)
    assert len(compiled) == 8
    assert counts[-1] == counts[1], f"compiled anew for batches of other sizes: {counts}"


@ALL
@DEPTHS
@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
def test_in_bfloat16_all_is_close_to_float64(masks: list[list[int]], num_layers: int, device: str) -> None:
    """On a GPU with FlashAttention and compiled functions."""
    shape = {"hidden_size": 128, "target_hidden_size": 128, "head_dim": 64, "num_heads": 4, "num_kv_heads": 2}
    case = as_large_as_trained(make_case(masks, seed=3, num_layers=num_layers, **shape))
    wanted = gradients(case, 4)
    there = dataclasses.replace(
        case,
        drafter=case.drafter.float().to(device),
        **{name: getattr(case, name).to(device) for name in ("embedding", "target_head", "draft_ids")},
    )
    with torch.autocast(device, torch.bfloat16):
        found = gradients(there, 4, batch=case.batch.to(device))
    # Some are next to nothing: with one key, queries and keys have no gradient at all.
    floor = 0.02 * max(float(exact.norm()) for exact in wanted)
    for ours, exact in zip(found, wanted, strict=True):
        error = (ours.cpu().double() - exact).norm() / max(float(exact.norm()), floor)
        assert error < 0.1, error


def as_large_as_trained(case: Case) -> Case:
    """Random matrices that keep a vector's length: with larger ones bfloat16's last bit decides what attention sees."""
    with torch.no_grad():
        for parameter in case.drafter.parameters():
            if parameter.ndim == 2:
                parameter.div_(0.3 * parameter.shape[1] ** 0.5)
    return dataclasses.replace(case, target_head=case.target_head / case.target_head.shape[1] ** 0.5)
