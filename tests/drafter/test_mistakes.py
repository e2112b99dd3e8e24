"""Mistakes seen in other trainers, each by name: none of them fails loudly, all of them cost accept length."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.drafter.cases import Case, make_case, pack
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eagle3.drafter.batch import Batch, valid_counts, valid_positions
from eagle3.drafter.plan import Plan
from eagle3.drafter.ttt import TttResult

PROMPT, ANSWER = 0, 1


def gradients(case: Case, loss: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*case.drafter.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, retain_graph=True)
    return dict(zip(names, found, strict=True))


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def changed(batch: Batch, **values: Tensor) -> Batch:
    return dataclasses.replace(batch, **values)


def test_loss_mask_is_that_of_the_predicted_token() -> None:
    """SpecForge #885, EAGLE #325: mask not shifted, so a turn's first token is never learned and two past it are."""
    mask = torch.tensor([0, 0, 0, 0, 1, 1, 0, 0]).bool()
    valid = valid_positions(mask, torch.zeros(8, dtype=torch.int32), 3)
    predicted = [[t + 2 + k for t in row.nonzero()[:, 0].tolist()] for k, row in enumerate(valid)]
    assert predicted == [[4, 5], [4, 5], [4, 5]]


def test_first_answer_token_is_learned_and_nothing_after_the_turn() -> None:
    case = make_case([[PROMPT] * 3 + [ANSWER] * 3 + [PROMPT] * 4], draft_vocab_size=40)
    batch = case.batch
    loss = case.run(1).loss_sum
    # The distribution for x_{t+1} is made of final[t]: 2, 3, 4 for the answer at 3, 4, 5.
    for t in range(10):
        final = batch.final.clone()
        final[t] += torch.randn(12, dtype=torch.float64)
        moved = not torch.equal(case.run(1, batch=changed(batch, final=final)).loss_sum, loss)
        assert moved == (t in (2, 3, 4)), t
    learned = [t for t in range(10) if valid_positions(batch.loss_mask, batch.document, 1)[0, t]]
    assert learned == [1, 2, 3]


def test_mean_is_over_scored_positions() -> None:
    """EAGLE #340: divided by all tokens, the learning rate depends on prompts and padding."""
    case = make_case([[PROMPT] * 4 + [ANSWER] * 4], draft_vocab_size=40)
    padding = make_case([[PROMPT] * 20], seed=9).documents
    padded = case.run(3, batch=pack(case.documents + padding))
    alone = case.run(3)
    assert alone.loss.item() == pytest.approx(padded.loss.item(), rel=1e-12)
    assert_same(gradients(case, alone.loss), gradients(case, padded.loss))
    by_hand = sum(0.8**k * alone.loss_sum[k].item() / n for k, n in enumerate([4, 4, 4]))
    assert alone.valid.tolist() == [4, 4, 4]
    assert alone.loss.item() == pytest.approx(by_hand)


def test_tokens_weigh_the_same_on_every_rank() -> None:
    """speculators: a mean of the ranks' means. Sums over a common count give one rank's gradient."""
    long, short = [PROMPT] + [ANSWER] * 9, [PROMPT, PROMPT, ANSWER]
    case = make_case([long, short])
    together = case.run(3)
    count = torch.stack(
        [valid_counts(d["loss_mask"], torch.zeros(len(d["loss_mask"])), 3) for d in case.documents]
    ).sum(0)
    assert torch.equal(count, together.valid)
    split = [case.run(3, batch=pack([document]), counts=count).loss for document in case.documents]
    assert sum(x.item() for x in split) == pytest.approx(together.loss.item(), rel=1e-12)
    halves = [gradients(case, loss) for loss in split]
    assert_same({name: halves[0][name] + halves[1][name] for name in halves[0]}, gradients(case, together.loss))


def test_final_state_is_taken_as_it_is() -> None:
    """vLLM #50815, TorchSpec #87: `final` is behind the target's norm; normed again, its size would not matter."""
    case = make_case([[PROMPT] + [ANSWER] * 7], draft_vocab_size=40)
    batch = case.batch
    larger = case.run(2, batch=changed(batch, final=3 * batch.final))
    assert not torch.allclose(larger.loss_sum, case.run(2).loss_sum, rtol=1e-3)
    found = case.run(1, "kl", batch=batch)
    expected, _ = case.expected(1, "kl")
    torch.testing.assert_close(found.loss_sum, expected.loss)


def test_packed_documents_do_not_leak() -> None:
    """speculators: the last tokens of one document see the next one's keys or targets."""
    case = make_case([[PROMPT] + [ANSWER] * 5, [ANSWER] * 6, [PROMPT, ANSWER, ANSWER, ANSWER]])
    packed = case.run(4)
    alone = [case.run(4, batch=pack([document]), counts=packed.valid) for document in case.documents]
    torch.testing.assert_close(packed.loss_sum, sum((r.loss_sum for r in alone), torch.zeros(4)), rtol=1e-12, atol=0)
    total = torch.stack([r.valid for r in alone]).sum(0)
    assert torch.equal(packed.valid, total)
    whole = gradients(case, packed.loss)
    parts = [gradients(case, r.loss) for r in alone]
    assert_same(whole, {name: sum((p[name] for p in parts), torch.zeros(())) for name in whole})


def test_gradient_of_one_document_ignores_its_neighbours() -> None:
    case = make_case([[PROMPT] + [ANSWER] * 4, [ANSWER] * 5, [PROMPT, ANSWER, ANSWER, ANSWER]], draft_vocab_size=40)
    batch = case.batch
    states = batch.states.clone().requires_grad_()
    middle = changed(batch, states=states, loss_mask=batch.loss_mask & (batch.document == 1))
    case.run(4, batch=middle).loss.backward()
    assert states.grad is not None
    touched = states.grad.abs().sum(-1) > 0
    assert torch.equal(touched.nonzero()[:, 0], torch.arange(5, 8)), "positions 5..7 of document 1 draft its tokens"


def test_draft_vocabulary_is_used() -> None:
    """speculators: the option ignored, the full vocabulary trained."""
    case = make_case([[ANSWER] * 12], draft_vocab_size=7)
    assert case.drafter.lm_head.weight.shape == (7, 12)
    found = case.run(3)
    top = (case.batch.final @ case.target_head.t()).argmax(-1)
    inside = torch.isin(top, case.draft_ids)
    assert found.in_vocabulary.tolist() == [int(inside[1 + k : 11].sum()) for k in range(3)]
    assert 0 < found.in_vocabulary[0] < found.valid[0]


def test_a_token_outside_the_draft_vocabulary_is_a_miss_without_a_loss() -> None:
    case = make_case([[ANSWER] * 8], draft_vocab_size=4)
    outside = next(v for v in range(40) if v not in case.draft_ids)
    batch = changed(case.batch, target_top=torch.full((8,), outside))
    found = case.run(3, batch=batch)
    assert found.loss_sum.tolist() == [0, 0, 0]
    assert found.valid.tolist() == [6, 5, 4]
    assert found.correct.tolist() == found.accepted.tolist() == [0, 0, 0]
    assert not any(g.any() for g in gradients(case, found.loss).values())


@pytest.mark.parametrize("kind", ["ce", "kl", "lk"])
def test_prompts_are_skipped_without_a_difference(kind: str) -> None:
    """Treating every position as scored-somewhere, the long way, gives the same losses and gradients."""
    case = make_case([[PROMPT] * 6 + [ANSWER] * 5 + [PROMPT] * 3, [PROMPT] * 4, [ANSWER, PROMPT] * 4], follow=0.5)
    batch, steps = case.batch, 4
    plan = Plan.of(batch, steps)
    assert len(plan.active) < len(plan.needed) < len(batch.input_ids)
    everything = Plan.of(changed(batch, loss_mask=torch.ones_like(batch.loss_mask)), steps)
    scored = [plan.valid[k, everything.active].nonzero()[:, 0] for k in range(steps)]
    slot = torch.zeros(len(batch.input_ids), dtype=torch.int64)
    slot[everything.targets] = torch.arange(len(everything.targets))
    rows = [slot[everything.active[r] + 1 + k] for k, r in enumerate(scored)]
    full = dataclasses.replace(everything, valid=plan.valid, counts=plan.counts, scored=scored, target_rows=rows)
    skipping, complete = case.run(steps, kind, plan=plan), case.run(steps, kind, plan=full)
    for name in ("correct", "reached", "accepted", "valid", "in_vocabulary"):
        assert torch.equal(getattr(skipping, name), getattr(complete, name)), name
    torch.testing.assert_close(skipping.loss_sum, complete.loss_sum, rtol=1e-11, atol=0)
    assert_same(gradients(case, skipping.loss), gradients(case, complete.loss))


def test_nothing_after_the_last_answer_is_computed() -> None:
    plan = Plan.of(make_case([[PROMPT] * 5 + [ANSWER] * 2 + [PROMPT] * 30]).batch, 3)
    # Tokens 5 and 6 are predicted by steps 0, 1, 2 at positions 1..4.
    assert plan.active.tolist() == [1, 2, 3, 4]
    assert plan.needed.tolist() == [0, 1, 2, 3, 4]


class _LargestTensor(TorchDispatchMode):
    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.numel())
        return out


def test_no_tensor_of_all_tokens_by_the_target_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3.drafter.ttt.VOCAB_CHUNK", 64)
    case = make_case([[PROMPT] + [ANSWER] * 50], vocab_size=2000, draft_vocab_size=32)
    with _LargestTensor() as seen:
        case.run(2).loss.backward()
    assert seen.largest <= 2000 * 12, "only the target's own weights are as large as its vocabulary"


@pytest.mark.parametrize("kind", ["ce", "kl", "lk"])
def test_bf16_autocast_keeps_fp32_weights_gradients_and_losses(kind: str) -> None:
    case = make_case([[PROMPT] * 2 + [ANSWER] * 8, [ANSWER] * 7], follow=0.3)
    exact = case.run(4, kind)
    case.drafter.float()
    rounded = {n: v.bfloat16() for n, v in vars(case.batch).items() if n in ("states", "final")}
    with torch.autocast("cpu", torch.bfloat16):
        found = case.run(4, kind, batch=changed(case.batch, **rounded))
    assert found.loss_sum.dtype == torch.float32
    torch.testing.assert_close(found.loss_sum.double(), exact.loss_sum, rtol=0.05, atol=0.05)
    found.loss.backward()
    for name, parameter in case.drafter.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


def steps_of(result: TttResult) -> Iterator[tuple[int, int, int, int]]:
    yield from zip(
        result.valid.tolist(), result.reached.tolist(), result.accepted.tolist(), result.correct.tolist(), strict=True
    )


def test_a_chain_is_accepted_only_while_every_step_is_right() -> None:
    case = make_case([[PROMPT] + [ANSWER] * 30], seed=2, follow=0.8)
    found = case.run(4)
    before = None
    for valid, reached, accepted, correct in steps_of(found):
        assert accepted <= reached <= valid
        assert accepted <= correct
        assert before is None or reached <= before
        before = accepted
    assert found.accepted[1] > 0, "the case must have chains at all"
