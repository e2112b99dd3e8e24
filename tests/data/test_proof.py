import random

import numpy as np
import pytest
import torch
from tests.data.small_datasets import SHAPE, prompts_of

from eagle3.data.placement import place
from eagle3.data.proof import (
    Findings,
    logprob_agreement,
    require_logprobs,
    require_rows,
    share_of_rows_off,
)
from eagle3.data.proving import BASE_ID, FILE, _place_copies, choose
from eagle3.errors import ProofError

S, H, V = 60, 64, 1000


def a_target(scale: float = 0.2):
    """Final states, tokens, head, and log-probabilities as a server computes them: from logits in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    final = torch.randn(S, H, generator=generator).bfloat16()
    head = (torch.randn(V, H, generator=generator) * scale).bfloat16()
    ids = torch.randint(V, (S,), generator=generator)
    logits = (final.float() @ head.float().T).bfloat16().float()
    logprobs = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    return final, ids, logprobs, head


@pytest.mark.parametrize("scale", [0.02, 0.2, 2.0])
def test_rounded_logits_agree_whatever_their_size(scale):
    agreement = logprob_agreement(*a_target(scale))
    assert agreement.good
    assert agreement.tokens == S - 1
    assert agreement.max_ratio < 2
    require_logprobs("here", agreement)


@pytest.mark.parametrize("scale", [0.02, 0.2, 2.0])
@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda f: f.roll(1, 0), id="rows of other tokens"),
        pytest.param(lambda f: torch.cat([f[:50], f[:10]]), id="a tail of another segment"),
        pytest.param(lambda f: torch.cat([f[:20], f[21:22], f[21:]]), id="one wrong row"),
        pytest.param(lambda f: f * 0.1, id="small states before the norm"),
        pytest.param(lambda f: f * 30, id="large states before the norm"),
        pytest.param(lambda f: f * torch.nan, id="not finite"),
    ],
)
def test_wrong_states_do_not(harm, scale):
    final, ids, logprobs, head = a_target(scale)
    agreement = logprob_agreement(harm(final), ids, logprobs, head)
    assert not agreement.good
    with pytest.raises(ProofError, match="the state is not the one after the final norm"):
        require_logprobs("here", agreement)


def test_a_large_head_is_compared_at_some_positions(monkeypatch):
    monkeypatch.setattr("eagle3.data.proof.FLOPS", 2.0 * H * V * 20)
    monkeypatch.setattr("eagle3.data.proof.HEAD_BLOCK", 300)
    agreement = logprob_agreement(*a_target())
    assert agreement.good
    assert agreement.tokens == 20


def test_rows_off_are_counted_beside_a_common_component():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(100, H, generator=generator)
    rows[:, 3] += 500.0  # as residual streams have it: all rows look alike
    noise = torch.randn(100, H, generator=generator) * 0.03
    assert share_of_rows_off((rows + noise).bfloat16(), rows.bfloat16()) == 0
    assert share_of_rows_off(rows.roll(1, 0), rows) == 1
    mixed = rows.clone()
    mixed[80:] = rows[:20]
    assert share_of_rows_off(mixed, rows) == pytest.approx(0.2)
    assert share_of_rows_off(rows * torch.nan, rows) == 1
    assert share_of_rows_off(rows[:3], rows[:3]) == 0


def test_too_many_rows_off_are_named():
    require_rows("here", "boundary.3", 0.1, 100)
    require_rows("here", "boundary.3", 0.5, 2)
    with pytest.raises(ProofError, match=r"here, boundary\.3: 20% of the rows change"):
        require_rows("here", "boundary.3", 0.2, 100)


def test_findings_are_means_over_tokens():
    agreement = logprob_agreement(*a_target())
    findings = Findings()
    findings.add(agreement)
    findings.add(agreement)
    record = findings.record()
    assert (record["sequences"], record["tokens"]) == (2, 2 * (S - 1))
    assert record["mean_error"] == pytest.approx(agreement.mean_error)


def test_the_longest_and_random_ones_are_chosen():
    lengths = np.array([1, 9, 300, 20, 0, 30, 40, 2])
    start, end = choose(lengths, random.Random(0))
    assert start[0] == 2
    assert len(set(start)) == 4
    assert {*start, *end} <= {1, 2, 3, 5, 6}
    assert choose(lengths, random.Random(0)) == (start, end)
    assert choose(np.array([1, 3, 1]), random.Random(0)) == ([1], [1])
    with pytest.raises(ProofError, match="No prompt has two tokens"):
        choose(np.array([1, 1]), random.Random(0))


def test_proof_rows_have_a_place_of_their_own():
    dataset = place(prompts_of([5, 9, 12]), SHAPE, 1.0, 100)
    copies = _place_copies(dataset, [2, 0, 2], FILE, BASE_ID)
    (plan,) = copies.shards
    assert plan.file == FILE
    assert copies.sample_ids.tolist() == [BASE_ID, BASE_ID + 1, BASE_ID + 2]
    assert copies.row.tolist() == [0, 12, 17]
    assert copies.input_ids(1).tolist() == dataset.input_ids(0).tolist()
