"""Packing: every sequence once an epoch, within the budget, the same everywhere, and full."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3.data import packing as packing_module
from eagle3.data.packing import Packing, best_fit, in_order, scored_counts, split_to
from eagle3.drafter.batch import valid_counts
from eagle3.errors import DataError

lengths_of = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def realistic(n: int) -> np.ndarray:
    drawn = np.random.default_rng(0).lognormal(np.log(500) - 0.3, 0.8, n)
    return np.clip(drawn.astype(np.int64), 8, 2048)


@pytest.mark.parametrize("ahead", [packing_module.PACKED_AHEAD, 0])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=lengths_of, budget=st.integers(1, 30), epochs=st.integers(1, 3), world=st.integers(1, 4))
def test_each_epoch_has_every_sequence_once(
    monkeypatch: pytest.MonkeyPatch, ahead: int, lengths: list[int], budget: int, epochs: int, world: int
) -> None:
    monkeypatch.setattr(packing_module, "PACKED_AHEAD", ahead)  # 0: as with more sequences than are packed ahead
    packing = Packing(np.array(lengths), budget, seed=1, epochs=epochs, world=world)
    if len(lengths) < packing.count:
        with pytest.raises(DataError, match="too few for"):
            packing.epoch(0)
        return
    assert packing.count % world == 0
    for epoch in range(epochs):
        batches = packing.epoch(epoch)
        assert len(batches) == packing.count
        assert all(batches)
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        for batch in batches:
            assert sum(lengths[i] for i in batch) <= budget or len(batch) == 1
        by_rank = [packing.of_rank(epoch, rank) for rank in range(world)]
        assert [batch for together in zip(*by_rank, strict=True) for batch in together] == batches


def test_an_epoch_that_needs_more_batches_than_there_are_is_packed_as_the_first_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing_module, "PACKED_AHEAD", 0)
    lengths = realistic(300) // 64 * 64 + 64
    own = Packing._packed

    def badly(self: Packing, epoch: int) -> tuple[list[list[int]], np.random.Generator]:
        batches, generator = own(self, epoch)
        return (batches if epoch == 0 else [[i] for i in range(300)]), generator

    monkeypatch.setattr(Packing, "_packed", badly)
    packing = Packing(lengths, 4096, seed=0, epochs=2)
    first, second = packing.epoch(0), packing.epoch(1)
    assert len(first) == len(second) == packing.count
    assert sorted(chain(*second)) == list(range(300))
    assert max(sum(lengths[i] for i in batch) for batch in second) <= 4096
    assert len({frozenset(batch) for batch in first} & {frozenset(batch) for batch in second}) < packing.count // 10


def test_deterministic_by_seed_and_epoch() -> None:
    lengths = realistic(300)

    def batches(seed: int, epoch: int) -> list[list[int]]:
        return Packing(lengths, 4096, seed=seed, epochs=3).epoch(epoch)

    assert batches(5, 1) == batches(5, 1)
    assert batches(5, 1) != batches(5, 2)
    assert batches(5, 1) != batches(6, 1)


def test_company_and_order_change_from_epoch_to_epoch() -> None:
    packing = Packing(realistic(300), 4096, seed=0, epochs=2)
    first, second = ({frozenset(batch) for batch in packing.epoch(e)} for e in (0, 1))
    assert len(first & second) < len(first) // 10


@pytest.mark.parametrize(("budget", "least"), [(2048, 0.98), (8192, 0.99)])
def test_batches_are_full(budget: int, least: float) -> None:
    assert Packing(realistic(5000), budget, seed=0, epochs=2).fill > least


def test_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    assert sorted(map(sorted, best_fit([0, 1, 2, 3], [10, 25, 10, 20], 20))) == [[0, 2], [1], [3]]


def test_best_fit_takes_the_fullest_batch_that_has_room() -> None:
    # 12 opens a batch with 8 left, 14 one with 6 left; 5 goes where less is left.
    assert best_fit([0, 1, 2], [12, 14, 5], 20) == [[0], [1, 2]]


def test_split_to_keeps_all() -> None:
    assert sorted(chain(*split_to([[1, 2, 3, 4], [5]], 4))) == [1, 2, 3, 4, 5]
    with pytest.raises(DataError, match=r"trainer\.devices"):
        split_to([[1], [2]], 3)


@given(lengths_of, st.integers(1, 30))
def test_in_order_is_in_order(lengths: list[int], budget: int) -> None:
    batches = in_order(np.array(lengths), budget)
    assert [i for batch in batches for i in batch] == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in batch) <= budget or len(batch) == 1 for batch in batches)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=5), st.integers(1, 7))
def test_scored_counts_are_those_of_the_loss(masks: list[list[int]], steps: int) -> None:
    offsets = np.cumsum([0, *map(len, masks)])
    flat = np.array([*chain(*masks)], np.uint8)
    document = torch.repeat_interleave(torch.arange(len(masks)), torch.tensor([len(m) for m in masks]))
    found = scored_counts(flat, offsets[:-1], offsets[1:], steps)
    assert found.shape == (len(masks), steps)
    assert found.sum(0).tolist() == valid_counts(torch.from_numpy(flat), document, steps).tolist()
