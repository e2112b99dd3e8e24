"""The schedule, and an optimiser whose state is what the weights are."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from eagle3.config.schema import OptimConfig
from eagle3.training.optim import build_optimizer, build_schedule, lr_factor


def test_warm_up_then_cosine_to_zero() -> None:
    factors = [lr_factor(step, 100, 0.1) for step in range(101)]
    assert factors[:10] == pytest.approx([n / 10 for n in range(1, 11)])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(factors[10:]))
    assert 0 < factors[99] < 0.001
    assert factors[100] == 0.0


def test_without_warm_up_it_begins_at_the_full_rate() -> None:
    assert lr_factor(0, 10, 0.0) == 1.0
    assert lr_factor(0, 1, 0.0) == 1.0
    assert lr_factor(0, 1, 0.5) == 1.0


def test_schedule_gives_each_step_its_rate() -> None:
    optimizer = build_optimizer(nn.Linear(2, 2).parameters(), OptimConfig(lr=0.5))
    schedule = build_schedule(optimizer, 20, 0.2)
    for step in range(20):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * lr_factor(step, 20, 0.2))
        optimizer.step()
        schedule.step()


def test_weight_decay_is_on_matrices_only() -> None:
    layer = nn.Linear(3, 2)
    optimizer = build_optimizer(layer.parameters(), OptimConfig(weight_decay=0.1))
    decayed = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decayed == {id(layer.weight): 0.1, id(layer.bias): 0.0}
    assert all(group["fused"] and group["betas"] == (0.9, 0.95) for group in optimizer.param_groups)


def test_frozen_parameters_are_left_out() -> None:
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    optimizer = build_optimizer(layer.parameters(), OptimConfig())
    assert [p for group in optimizer.param_groups for p in group["params"]] == [layer.weight]
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert {value.dtype for value in optimizer.state[layer.weight].values()} == {torch.float32}
