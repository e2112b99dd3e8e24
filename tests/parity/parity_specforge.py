"""SpecForge 0.2.0 and we, on the same weights and documents; then each place where its convention is another.

Its forward is in fp32 whatever its weights (norms, softmax, teacher), ours here in fp64: tolerances are fp32's.
"""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from bench.peers.specforge_trainer import SpecForgeTrainer
from tests.parity.cases import ANSWER, DECAY, PROMPT, STEPS, Case, assert_gradients, make_case, nudged
from tests.peers import peer_path
from torch import Tensor

from eagle3.config.schema import RopeScaling

pytestmark = pytest.mark.usefixtures("specforge")
TURNS = [PROMPT] * 3 + [ANSWER] * 6 + [PROMPT] * 3 + [ANSWER] * 5
SEVERAL = [[PROMPT] * 4 + [ANSWER] * 9, [PROMPT] * 2 + [ANSWER] * 4, TURNS]
DECAYS = DECAY ** torch.arange(STEPS)


def trainer_of(case: Case, **options: Any) -> SpecForgeTrainer:
    drafter, target = case.in_fp32()
    options = {"attention": "sdpa", "dtype": torch.float32, "decay": DECAY} | options
    return SpecForgeTrainer(drafter, target, STEPS, **options)


def shifted(case: Case) -> list[Tensor]:
    """It scores the prediction of x_{t+2+k} where x_{t+k} is a response token, so it is given the mask two early."""
    return [torch.cat((d.loss_mask[2:], d.loss_mask.new_zeros(2))) for d in case.documents]


def run(trainer: SpecForgeTrainer, documents: Any) -> tuple[Any, list[Tensor]]:
    """Its output, and its logits `[B, S, D]` by step."""
    logits: list[Tensor] = []
    hook = trainer.draft.lm_head.register_forward_hook(lambda _module, _args, out: logits.append(out.detach().double()))
    out = trainer.forward(trainer.batch(documents))
    hook.remove()
    return out, logits


@pytest.mark.parametrize(
    ("masks", "changes"),
    [
        ([TURNS], {}),
        (SEVERAL, {}),
        (SEVERAL, {"draft_vocab_size": 40}),
        (SEVERAL, {"fc_norm": True}),
        (SEVERAL, {"num_kv_heads": 4}),
        (SEVERAL, {"rms_norm_eps": 0.1}),
        (SEVERAL, {"rope_scaling": RopeScaling("linear", 4.0)}),
        (SEVERAL, {"rope_scaling": RopeScaling("llama3", 8.0, 16)}),
        (SEVERAL, {"rope_scaling": RopeScaling("yarn", 4.0, 16)}),
    ],
    ids=["one", "several", "whole vocabulary", "fc_norm", "kv heads", "eps", "linear", "llama3", "yarn"],
)
def test_logits_losses_counts_and_gradients_agree(masks: list[list[int]], changes: dict[str, Any]) -> None:
    case = make_case(masks, **changes)
    trainer = trainer_of(case)
    out, logits = run(trainer, case.given(shifted(case)))
    rows = len(masks) * max(map(len, masks))

    ours, gradients = case.ours(DECAYS / rows)
    starts = torch.tensor([0, *map(len, masks)]).cumsum(0)
    for (k, position), wanted in case.defined().logits.items():
        document = int(torch.searchsorted(starts, position, right=True)) - 1
        found = logits[k][document, position - int(starts[document])]
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    losses = torch.stack(out.metrics["plosses"]).double() * rows
    torch.testing.assert_close(losses, ours.loss_sum, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.loss.double(), ours.loss.detach(), rtol=1e-5, atol=1e-6)
    assert [int(x) for x in out.metrics["acc_corrects"]] == ours.correct.tolist()
    assert [int(x) for x in out.metrics["acc_denoms"]] == ours.valid.tolist()
    out.loss.backward()
    assert_gradients(trainer.gradients(), gradients)


def test_its_reference_loss_is_its_kernel(specforge: str) -> None:
    """What stands in for the Triton kernel here, against the kernel in Triton's interpreter."""
    script = """
import torch
from specforge.core.loss import LogSoftmaxLoss, _compute_loss
torch.compiler.set_stance("force_eager")
p, mask = torch.randn(2, 5, 37).softmax(-1), torch.rand(2, 5, 1) > 0.3
logits = torch.randn(2, 5, 37)
losses, gradients = [], []
for function in (_compute_loss, LogSoftmaxLoss.apply):
    x = logits.clone().requires_grad_()
    losses.append(function(x, p, mask.int()))
    losses[-1].backward()
    gradients.append(x.grad)
torch.testing.assert_close(*losses)
torch.testing.assert_close(*gradients)
"""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(peer_path("specforge", specforge))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_compact_teacher_is_the_same() -> None:
    case = make_case(SEVERAL)
    out, _ = run(trainer_of(case, compact=True), case.given(shifted(case)))
    ours, _ = case.ours(DECAYS / (3 * max(map(len, SEVERAL))))
    torch.testing.assert_close(out.loss.double(), ours.loss.detach(), rtol=1e-5, atol=1e-6)


def test_its_acceptance_loss_is_ours_over_a_whole_vocabulary_only() -> None:
    """Ours renormalises p over the draft vocabulary, as in the other losses; its keeps what p has outside as lost."""
    for size, same in ((40, True), (16, False)):
        case = make_case([TURNS], draft_vocab_size=size)
        trainer = trainer_of(case)
        trainer.model.lk_loss_type = "alpha"
        out, _ = run(trainer, case.given(shifted(case)))
        ours, _ = case.ours(DECAYS, "lk")
        found = torch.stack(out.metrics["plosses"]).double() * ours.in_vocabulary
        assert torch.allclose(found, ours.loss_sum, rtol=1e-5) == same


def test_differs_loss_mask_is_two_tokens_early() -> None:
    """SpecForge #885. Final state t makes the target of x_{t+1}; the answer is x_3, x_4, x_5."""
    case = make_case([[PROMPT] * 3 + [ANSWER] * 3 + [PROMPT] * 4], draft_vocab_size=40)
    trainer = trainer_of(case)
    first = run(trainer, case.given())[0].metrics["plosses"][0]
    learned = [
        t + 1
        for t in range(10)
        if not torch.equal(run(trainer, nudged(case.given(), 0, t))[0].metrics["plosses"][0], first)
    ]
    assert learned == [5, 6, 7], "of the answer only x_5, then two tokens past it"


def test_differs_mean_over_padding_and_prompts() -> None:
    """EAGLE #340: a row of padding or of prompt halves the loss, and so the learning rate."""
    case = make_case([TURNS, [PROMPT] * len(TURNS)])
    trainer = trainer_of(case)
    alone, both = (run(trainer, case.given()[:n])[0].loss for n in (1, 2))
    torch.testing.assert_close(both, alone / 2)


def test_differs_norm_output_is_another_switch() -> None:
    """Its `norm_output`, true by default, only says that lm_head reads the norm's output: it carries the un-normed
    state either way. SGLang reads the key as EAGLE-3.1's, the normed state carried."""
    case = make_case([TURNS])
    plain, carried = case.defined(), case.defined(norm_output=True)
    for config, matches in (({}, True), ({"norm_output": True}, True), ({"norm_output": False}, False)):
        _, logits = run(trainer_of(case, config=config), case.given(shifted(case)))
        for (k, t), wanted in plain.logits.items():
            assert torch.allclose(logits[k][0, t], wanted, rtol=1e-5, atol=1e-4) == matches
            assert k == 0 or not torch.allclose(logits[k][0, t], carried.logits[k, t], rtol=1e-3, atol=1e-3)
