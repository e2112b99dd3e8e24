"""speculators 0.9.0 and we, on the same weights and documents; then each place where its convention is another.

Its forward is in fp32 whatever its weights (norms, losses), ours here in fp64: tolerances are fp32's.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.peers.speculators_trainer import SpeculatorsTrainer
from tests.parity.cases import ANSWER, DECAY, PROMPT, STEPS, Case, assert_gradients, make_case, nudged
from torch import Tensor

from eagle3.config.schema import RopeScaling
from eagle3.drafter.model import rms_norm

pytestmark = pytest.mark.usefixtures("speculators")
TURNS = [PROMPT] * 3 + [ANSWER] * 6 + [PROMPT] * 3 + [ANSWER] * 5
# Documents after the first begin with so many prompt tokens that nothing of its leak between documents is scored.
SEVERAL = [TURNS, [PROMPT] * (STEPS + 1) + [ANSWER] * 7, [PROMPT] * (STEPS + 2) + [ANSWER] * 3 + [PROMPT] * 2]
DECAYS = DECAY ** torch.arange(STEPS)


def trainer_of(case: Case, **options: Any) -> SpeculatorsTrainer:
    drafter, target = case.in_fp32()
    options = {"attention": "sdpa", "dtype": torch.float32, "decay": DECAY} | options
    return SpeculatorsTrainer(drafter, target, STEPS, **options)


def shifted(case: Case) -> list[Tensor]:
    """It scores the prediction of x_{t+2+k} where x_{t+1+k} is a response token, so it is given the mask one early; and
    it scores tokens outside the draft vocabulary, so the mask leaves them out."""
    return [
        torch.cat((d.loss_mask[1:], d.loss_mask.new_zeros(1))) & known
        for d, known in zip(case.documents, case.known, strict=True)
    ]


def run(trainer: SpeculatorsTrainer, documents: Any) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
    """Its loss, its metrics, and its logits `[rows, D]` by step."""
    logits: list[Tensor] = []
    hook = trainer.model.lm_head.register_forward_hook(
        lambda _module, _args, out: logits.append(out.detach()[0].double())
    )
    loss, metrics = trainer.forward(trainer.batch(documents))
    hook.remove()
    return loss, metrics, logits


def losses_of(metrics: dict[str, Tensor]) -> Tensor:
    return torch.stack([metrics[f"loss_{k}_sum"].double() for k in range(STEPS)])


@pytest.mark.parametrize(
    ("masks", "changes", "options"),
    [
        ([TURNS], {}, {}),
        (SEVERAL, {}, {}),
        (SEVERAL, {}, {"rows": 64}),
        (SEVERAL, {}, {"attention": "eager"}),
        (SEVERAL, {"draft_vocab_size": 40}, {}),
        (SEVERAL, {"num_boundaries": 5}, {}),
        (SEVERAL, {"fc_norm": True}, {}),
        (SEVERAL, {"norm_output": True}, {}),
        (SEVERAL, {"num_kv_heads": 4, "rms_norm_eps": 0.1}, {}),
        (SEVERAL, {"rope_scaling": RopeScaling("linear", 4.0)}, {}),
        (SEVERAL, {"rope_scaling": RopeScaling("llama3", 8.0, 16)}, {}),
        (SEVERAL, {"rope_scaling": RopeScaling("yarn", 4.0, 16)}, {}),
    ],
    ids=lambda x: "-".join(map(str, x)) or "plain" if isinstance(x, dict) else str(len(x)),
)
def test_logits_losses_and_gradients_agree(
    masks: list[list[int]], changes: dict[str, Any], options: dict[str, Any]
) -> None:
    case = make_case(masks, **changes)
    trainer = trainer_of(case, **options)
    loss, metrics, logits = run(trainer, case.given(shifted(case)))

    count = case.ours(DECAYS, "kl")[0].in_vocabulary
    ours, gradients = case.ours(DECAYS / count, "kl")
    starts = torch.tensor([0, *map(len, masks)]).cumsum(0)
    for (k, position), wanted in case.defined().logits.items():
        document = int(torch.searchsorted(starts, position, right=True)) - 1
        # Each document has lost one row: it drops x_0 and the last state.
        torch.testing.assert_close(logits[k][position - document], wanted, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(losses_of(metrics), DECAYS * ours.loss_sum / count, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss.detach().double(), ours.loss.detach(), rtol=1e-5, atol=1e-5)
    loss.backward()
    assert_gradients(trainer.gradients(), gradients)


def test_accepted_chains_and_acceptance_loss_agree() -> None:
    case = make_case([[PROMPT] * 3 + [ANSWER] * 60], draft_vocab_size=40)
    with torch.no_grad():
        case.drafter.lm_head.weight[3] *= 20  # a token that is drafted always or never, and mostly right
    before, final = case.documents[0].before_norm, case.documents[0].final
    for t in range(len(final)):
        if t % 5:
            before[t] = case.target.head[3] / case.target.norm
            final[t] = rms_norm(before[t], case.target.norm, case.drafter.shape.rms_norm_eps)
    loss, metrics, _ = run(trainer_of(case, loss="nla"), case.given(shifted(case)))
    count = case.ours(DECAYS, "lk")[0].valid
    ours, _ = case.ours(DECAYS / count, "lk")
    assert 0 < ours.accepted[2] < ours.reached[2] < ours.valid[2]
    assert [int(metrics[f"full_acc_{k}_sum"]) for k in range(STEPS)] == ours.accepted.tolist()
    assert [int(metrics[f"full_acc_{k}_total"]) for k in range(STEPS)] == ours.valid.tolist()
    # It also counts chains that reach past the answer, where nothing is scored; ours does not.
    assert ours.reached.tolist() == [60, 25, 17, 10]
    assert [int(metrics[f"cond_acc_{k}_total"]) for k in range(STEPS)] == [60, 26, 17, 10]
    torch.testing.assert_close(loss.detach().double(), ours.loss.detach(), rtol=1e-5, atol=1e-5)


def learned(case: Case, document: int, steps: int) -> list[int]:
    """Tokens of a document whose target distribution moves the loss of steps 0 .. steps-1."""
    trainer = trainer_of(case)
    before = losses_of(run(trainer, case.given())[1])[:steps]
    return [
        t + 1
        for t in range(len(case.documents[document]))
        if not torch.equal(losses_of(run(trainer, nudged(case.given(), document, t))[1])[:steps], before)
    ]


def test_differs_loss_mask_is_one_token_early() -> None:
    """Final state t makes the target of x_{t+1}; the answer is x_3, x_4, x_5."""
    case = make_case([[PROMPT] * 3 + [ANSWER] * 3 + [PROMPT] * 4], draft_vocab_size=40)
    assert learned(case, 0, STEPS) == [4, 5, 6], "not the first of the answer, but one token past it"


def test_differs_packed_documents_leak() -> None:
    """The last positions of a document are scored on the first targets of the next one, of whose tokens it is told."""
    case = make_case([[PROMPT] * 4, [ANSWER] * 6], draft_vocab_size=40)
    trainer = trainer_of(case)
    before = losses_of(run(trainer, case.given())[1])
    changed = case.given()
    changed[0].states.neg_()  # captured states of the first document, in which no token is scored
    after = losses_of(run(trainer, changed)[1])
    assert (after != before).tolist() == [False, True, True, True]
    ours, _ = case.ours(DECAYS)
    case.documents[0].states.neg_()
    assert torch.equal(case.ours(DECAYS)[0].loss_sum, ours.loss_sum)


def test_differs_tokens_outside_the_draft_vocabulary_are_scored_and_can_be_hits() -> None:
    """The target says something that cannot be drafted. Ours: no loss, a miss. Its: the best of the rest is learned."""
    case = make_case([[PROMPT] * 3 + [ANSWER] * 20], draft_vocab_size=1)
    _, metrics, _ = run(trainer_of(case), case.given())
    ours, _ = case.ours(DECAYS)
    assert int(metrics["full_acc_0_sum"]) == int(metrics["full_acc_0_total"]) == 20
    assert ours.correct[0] == ours.in_vocabulary[0] < ours.valid[0] == 20
    wide = make_case([[PROMPT] * 3 + [ANSWER] * 20], draft_vocab_size=4)
    unknown = [t + 1 for t, known in enumerate(wide.known[0]) if not known and t >= 3]
    assert set(unknown) <= set(learned(wide, 0, 1))


def test_differs_each_batch_is_a_mean_of_its_own() -> None:
    """Its loss is a mean over the batch, and its trainer averages ranks: a token weighs more in a short batch."""
    case = make_case([[PROMPT] * 5 + [ANSWER] * 15, [PROMPT] * 5 + [ANSWER] * 3])
    trainer = trainer_of(case)
    masks = [torch.cat((d.loss_mask[1:], d.loss_mask.new_zeros(1))) for d in case.documents]
    both = losses_of(run(trainer, case.given(masks))[1])[0]
    long, short = (losses_of(run(trainer, [d])[1])[0] for d in case.given(masks))
    torch.testing.assert_close(both, (15 * long + 3 * short) / 18, rtol=1e-5, atol=0)
    assert abs(float(both - (long + short) / 2)) > 0.01


def test_differs_it_reads_the_state_before_the_final_norm() -> None:
    """And applies the norm itself: states that are behind the norm already are normed twice, without complaint."""
    case = make_case([TURNS])
    trainer = trainer_of(case)
    right = run(trainer, case.given())[0]
    for document in case.documents:
        document.before_norm.copy_(document.final)
    assert not torch.allclose(run(trainer, case.given())[0], right, rtol=1e-3)


def test_differs_lm_head_is_frozen_and_the_residual_normed_by_default() -> None:
    case = make_case([TURNS])
    frozen = trainer_of(case, train_head=False)
    frozen.forward(frozen.batch(case.given()))[0].backward()
    assert "lm_head.weight" not in frozen.gradients()
    options = Path(sys.modules["speculators"].__path__[0], "train/config/schema.py").read_text()
    assert "norm_before_residual: bool = Field(\n        default=True," in options
    plain, normed = (run(trainer_of(case, config={"norm_before_residual": n}), case.given())[2] for n in (False, True))
    assert not torch.allclose(plain[0], normed[0], rtol=1e-2)


def test_differs_an_absolute_d2t_is_loaded_without_complaint() -> None:
    case = make_case([TURNS])
    model = trainer_of(case).model
    model.load_vocab_mappings(model.t2d.clone(), case.target.draft_ids)
    assert torch.equal(model.d2t, case.target.draft_ids)
