"""The fast path against the plain definition, to float64 accuracy."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafter.cases import Case, make_case

from eagle3.config.schema import RopeScaling

masks = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=4)


def check(case: Case, steps: int, kind: str, decay: float = 0.8) -> None:
    expected, weights = case.expected(steps, kind)
    normaliser = torch.arange(1, steps + 1)
    found = case.run(steps, kind, counts=normaliser, decay=decay)
    torch.testing.assert_close(found.loss_sum, expected.loss, rtol=1e-9, atol=1e-9)
    for name in ("valid", "correct", "reached", "accepted"):
        assert getattr(found, name).tolist() == getattr(expected, name), name

    found.loss.backward()
    whole = sum(decay**k * expected.loss[k] / float(normaliser[k]) for k in range(steps))
    assert isinstance(whole, torch.Tensor)
    if not whole.requires_grad:  # nothing is scored
        assert all(p.grad is None or not p.grad.any() for p in case.drafter.parameters())
        return
    whole.backward()
    for name, parameter in case.drafter.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None, name
            continue
        wanted = weights[name].grad
        wanted = torch.zeros_like(parameter) if wanted is None else wanted
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-7, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@settings(max_examples=60, deadline=None)
@given(
    masks=masks,
    steps=st.integers(1, 7),
    kind=st.sampled_from(["ce", "kl", "lk"]),
    seed=st.integers(0, 10_000),
    follow=st.sampled_from([0.0, 0.7, 1.0]),
    draft_vocab_size=st.integers(2, 40),
    norm_output=st.booleans(),
    fc_norm=st.booleans(),
    num_layers=st.sampled_from([1, 1, 2, 3]),
    train_lm_head=st.sampled_from([True, True, False]),
)
def test_outputs_loss_and_every_gradient_equal_the_definition(
    masks: list[list[int]], steps: int, kind: str, seed: int, **changes: float
) -> None:
    check(make_case(masks, seed, **changes), steps, kind)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_boundaries": 1, "target_hidden_size": 8},
        {"num_boundaries": 1},  # as wide as the drafter: no fc
        {"num_boundaries": 5},
        {"train_lm_head": False},
        {"hidden_size": 16},  # an embedding projection
        {"num_kv_heads": 4},
        {"num_layers": 2},
        {"num_layers": 3, "hidden_size": 16, "attention_bias": True, "norm_output": True},
        {"num_heads": 6, "num_kv_heads": 1, "head_dim": 2},
        {"attention_bias": True},
        {"fc_norm": True, "norm_output": True},
        {"draft_vocab_size": 40},
        {"rms_norm_eps": 0.1},
        {"rope_scaling": RopeScaling("linear", 4.0)},
        {"rope_scaling": RopeScaling("llama3", 8.0, 16)},
        {"rope_scaling": RopeScaling("yarn", 4.0, 16)},
    ],
    ids=lambda c: "-".join(map(str, c)),
)
def test_each_switch_equals_its_definition(changes: dict[str, object]) -> None:
    case = make_case([[0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1, 1, 1]], seed=3, **changes)
    check(case, steps=4, kind="ce")


@pytest.mark.parametrize("num_layers", [1, 2])
def test_long_documents_in_blocks(monkeypatch: pytest.MonkeyPatch, num_layers: int) -> None:
    """Query blocks, vocabulary chunks and row chunks smaller than the data change nothing."""
    monkeypatch.setattr("eagle3.drafter.prefix.QUERY_BLOCK", 3)
    monkeypatch.setattr("eagle3.drafter.losses.ROW_CHUNK", 2)
    monkeypatch.setattr("eagle3.drafter.losses.GRADIENT_CHUNK", 5)
    monkeypatch.setattr("eagle3.drafter.ttt.VOCAB_CHUNK", 7)
    masks = [[0] * 4 + [1] * 9, [1] * 5, [0, 0], [0, 1] * 5]
    check(make_case(masks, seed=5, follow=0.5, num_layers=num_layers), steps=5, kind="kl")


def test_a_second_backward_is_refused() -> None:
    """The head's gradients are scaled in place: once."""
    case = make_case([[0, 1, 1, 1, 1]])
    loss = case.run(2).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward"):
        loss.backward()


def test_nothing_to_score() -> None:
    for masks in ([[0, 0, 0]], [[1]], [[1, 1], [1, 1]]):
        found = make_case(masks).run(3)
        assert found.valid.tolist() == [0, 0, 0]
        assert found.loss.item() == 0
        found.loss.backward()
