"""Figures from sums, against counting by hand."""

import pytest
import torch

from eagle3.drafter.ttt import TttResult
from eagle3.training.acceptance import Figures, Totals, accept_length


def result(
    loss: list[float], valid: list[int], correct: list[int], reached: list[int], accepted: list[int]
) -> TttResult:
    sums = torch.tensor(loss)
    counts = (torch.tensor(n) for n in (valid, correct, reached, accepted, valid))
    return TttResult(sums.sum(), sums, *counts, choices=torch.zeros(sum(valid), dtype=torch.int64))


def test_accept_length() -> None:
    assert accept_length([]) == 1.0
    assert accept_length([0.5, 0.5]) == 1.75
    assert accept_length([1.0, 1.0, 1.0]) == 4.0
    assert accept_length([0.0, 1.0]) == 1.0


def test_accept_length_is_the_mean_of_what_each_position_accepts() -> None:
    # Four positions that accept 0, 1, 2 and 2 of two drafts: 1 + 5/4.
    figures = Figures([[0, 0], [4, 4], [3, 2], [4, 3], [3, 2], [4, 4]], 0.8)
    assert figures.accept_length == pytest.approx(1 + 5 / 4)
    assert figures.histogram() == pytest.approx([1 / 4, 1 / 4, 2 / 4])


def test_histogram_has_the_accept_length_as_its_mean() -> None:
    figures = Figures([[0] * 3, [9, 8, 7], [5, 4, 3], [9, 4, 2], [5, 3, 1], [9, 8, 7]], 0.8)
    chances = figures.histogram()
    assert sum(chances) == pytest.approx(1)
    assert 1 + sum(j * p for j, p in enumerate(chances)) == pytest.approx(figures.accept_length)


def test_totals_weight_batches_by_their_positions() -> None:
    totals = Totals(steps=2, decay=0.5)
    totals.add(result([2.0, 4.0], [2, 1], [1, 0], [2, 1], [1, 0]))
    totals.add(result([10.0, 0.0], [8, 3], [8, 3], [8, 3], [8, 3]))
    figures = totals.take()
    assert figures.loss_by_step == pytest.approx([1.2, 1.0])
    assert figures.loss == pytest.approx(1.2 + 0.5 * 1.0)
    assert figures.accuracy == pytest.approx([0.9, 0.75])
    assert figures.conditional == pytest.approx([0.9, 0.75])
    assert set(figures.metrics("val")) == {
        "val/loss",
        "val/accept_length",
        *(f"val/{name}_step_{k}" for name in ("loss", "acc", "cond_acc") for k in (0, 1)),
    }
    assert totals.take().valid == [0, 0]


def test_nothing_reached_is_no_acceptance() -> None:
    figures = Totals(steps=3, decay=0.8).take()
    assert (figures.loss, figures.accept_length, figures.accuracy) == (0.0, 1.0, [0.0, 0.0, 0.0])
