"""Chains of real drafts against the target's own answers, and against the simulation, position by position."""

import pytest
import torch
from tests.evaluation.tiny_pair import STEPS, Pair, make_pair, read, with_top

from eagle3.drafter.model import Drafter
from eagle3.drafter.plan import Plan
from eagle3.drafter.ttt import run_ttt
from eagle3.evaluation.chain import Chain, ChainDrafter, ChainFigures, run_chain

COUNT = 50


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("deep"), updates=100, num_layers=2)


def chains_of(pair: Pair, drafter: Drafter, steps: int = STEPS, ends: tuple[int, ...] = ()) -> list[Chain]:
    one = ChainDrafter(drafter, pair.embedding, pair.draft_ids, torch.float32)
    return [run_chain(pair.target, one, prompt, steps, COUNT, ends) for prompt in pair.prompts]


def greedy(pair: Pair, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = pair.target.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    return out[0, len(prompt) :].tolist()


def figures_of(chains: list[Chain], steps: int = STEPS) -> ChainFigures:
    figures = ChainFigures(steps)
    for chain in chains:
        figures.add(chain)
    return figures


def test_the_answer_is_the_targets_own(pair: Pair) -> None:
    for steps in (1, STEPS, 5):
        for chain, prompt in zip(chains_of(pair, pair.drafter, steps), pair.prompts, strict=True):
            assert chain.output_ids == greedy(pair, prompt, COUNT)


def test_drafts_are_the_simulated_ones_position_by_position(pair: Pair) -> None:
    check_position_by_position(pair)


def test_those_of_two_layers_too(deep: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are read in blocks."""
    monkeypatch.setattr("eagle3.evaluation.chain.QUERY_BLOCK", 4)
    check_position_by_position(deep)


def check_position_by_position(pair: Pair) -> None:
    """Up to the first miss, where the simulation goes on with the right token and the chain with its own."""
    compared = [0] * STEPS
    for chain, prompt in zip(chains_of(pair, pair.drafter), pair.prompts, strict=True):
        batch = with_top(read(pair.target, [*prompt, *greedy(pair, prompt, COUNT + STEPS + 1)], 0), pair.head)
        plan = Plan.of(batch, STEPS)
        with torch.no_grad():
            found = run_ttt(
                pair.drafter, batch, pair.embedding, pair.head[pair.draft_ids], pair.draft_ids, STEPS, plan=plan
            )
        by_step = found.choices.split([len(rows) for rows in plan.scored])
        simulated = [
            dict(zip(plan.active[rows].tolist(), said.tolist(), strict=True))
            for rows, said in zip(plan.scored, by_step, strict=True)
        ]
        for round_ in chain.rounds:
            for k in range(min(round_.accepted + 1, STEPS)):
                assert round_.drafts[k] == simulated[k][round_.position], (round_, k)
                compared[k] += 1
    assert min(compared) > 20, compared


def test_figures(pair: Pair) -> None:
    chains = chains_of(pair, pair.drafter)
    figures = figures_of(chains)
    assert figures.accept_length > 1.5, "it has learned something, so that there is something to measure"
    rounds = [round_ for chain in chains for round_ in chain.rounds]
    found = figures.metrics("eval/chain")
    assert found["eval/chain/rounds"] == len(rounds)
    assert found["eval/chain/accept_length"] == pytest.approx(1 + sum(r.accepted for r in rounds) / len(rounds))
    assert sum(found[f"eval/chain/position_acc_{k}"] for k in range(STEPS)) + 1 == pytest.approx(figures.accept_length)
    product = found["eval/chain/cond_acc_step_0"] * found["eval/chain/cond_acc_step_1"]
    assert found["eval/chain/position_acc_1"] == pytest.approx(product)
    # Every token but the first of each answer came out of a round.
    for chain in chains:
        assert 1 + sum(r.accepted + 1 for r in chain.rounds) in range(COUNT, COUNT + STEPS + 1)


def test_an_untrained_drafter_gains_nothing(pair: Pair) -> None:
    """The measurement itself is honest."""
    untrained = Drafter(pair.drafter.shape)
    untrained.reset(torch.Generator().manual_seed(11))
    assert figures_of(chains_of(pair, untrained)).accept_length < 1.1


def test_one_boundary_off_gains_less(pair: Pair) -> None:
    """What a wrong export does, on the same weights: seen here."""
    right = figures_of(chains_of(pair, pair.drafter)).accept_length
    pair.target.boundaries = [b + 1 if b < 5 else b for b in pair.target.boundaries]
    try:
        assert figures_of(chains_of(pair, pair.drafter)).accept_length < right
    finally:
        pair.target.boundaries = [2, 3, 5]


def test_an_answer_ends_at_its_end_token(pair: Pair) -> None:
    whole = chains_of(pair, pair.drafter)
    ends = (whole[0].output_ids[COUNT // 2],)
    for chain, long in zip(chains_of(pair, pair.drafter, ends=ends), whole, strict=True):
        stop = long.output_ids.index(ends[0]) + 1 if ends[0] in long.output_ids else COUNT
        assert chain.output_ids == long.output_ids[:stop]
        assert all(0 <= r.accepted <= STEPS for r in chain.rounds)
