import random

import numpy as np
import pytest
import torch
from tests.data.small_datasets import SHAPE, prompts_of

from eagle3.data.placement import place
from eagle3.data.proof import (
    Findings,
    logprob_agreement,
    require_decoding,
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
    assert "max_decode_error" not in record, "nothing was decoded"
    findings.max_decode_error = 0.01
    assert findings.record()["tolerance_decode_error"] == 0.5


def test_decoded_and_prefilled_log_probabilities_may_differ_by_rounding_and_a_routed_token():
    prefilled = torch.tensor([-0.1, -2.0, -0.5, -1.0, -3.0])
    assert require_decoding("here", prefilled + torch.tensor([0.02, -0.01, 1.4, 0.0, -0.05]), prefilled) < 0.03
    for wrong in (prefilled - 2.0, prefilled * torch.nan):
        with pytest.raises(ProofError, match="Decoding and prefill do not compute the same"):
            require_decoding("here", wrong, prefilled)


def test_text_less_likely_than_a_guess_is_doubted():
    likely, unlikely = Findings(mean_logprob=-2.0), Findings(mean_logprob=-8.0)
    assert likely.doubt(1000) is None
    assert "-8.00 nats a token, less than a guess among its 1,000 tokens (-6.91)" in (unlikely.doubt(1000) or "")


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
