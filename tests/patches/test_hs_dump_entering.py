"""The watch on the layers' norms, and what is refused before anything is captured. With a model of two lines."""

from types import SimpleNamespace

import pytest
import torch
from eagle3_hs_dump import DumpError, plugin
from eagle3_hs_dump.entering import PASSES, ROWS, Entering
from tests.e2e.placing import place
from torch import Tensor, nn

H = 16


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(H)
        self.linear = nn.Linear(H, H)
        nn.init.normal_(self.input_layernorm.weight, 1.0, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.3 * self.linear(self.input_layernorm(x))


def run(layers: nn.ModuleList, tokens: int = 40) -> list[Tensor]:
    """What enters each layer, and leaves the last."""
    x = torch.randn(tokens, H)
    entering = [x]
    for layer in layers:
        entering.append(layer(entering[-1]))
    return entering


@pytest.fixture
def layers() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Layer() for _ in range(5)).requires_grad_(False)


@pytest.mark.parametrize("tokens", [1, 40, ROWS + 1])
def test_what_enters_a_layer_passes_and_its_neighbours_do_not(layers, tokens):
    entering = Entering(layers, (1, 3))
    states = run(layers, tokens)
    entering.compare([states[1], states[3]])
    assert entering.compared == 2
    for wrong in ([states[2], states[3]], [states[1], states[4]], [states[0], states[3]]):
        for layer, state in zip(layers, states, strict=False):
            layer(state)
        with pytest.raises(DumpError, match=r"boundary \d: what the model hands out is not what enters layer"):
            entering.compare(wrong)


def test_only_the_first_passes_are_watched(layers):
    entering = Entering(layers, (1, 3))
    for _ in range(PASSES + 3):
        entering.forget()
        states = run(layers)
        entering.compare([states[1], states[3]])
    assert entering.compared == 2 * PASSES
    assert not any(layer.input_layernorm._forward_hooks for layer in layers)


def test_what_can_not_be_compared_is_not(layers):
    """A boundary after the last layer, a layer without the norm, other rows, another type, a pass that went by."""
    del layers[2].input_layernorm
    layers[2].input_layernorm = None
    layers[2].forward = lambda x: x  # pyright: ignore[reportAttributeAccessIssue]
    entering = Entering(layers, (1, 5))
    states = run(layers)
    entering.compare([states[2][:-1], states[2]])
    entering.compare([states[2], states[2]])
    states = run(layers)
    entering.compare([states[2].bfloat16(), states[2]])
    run(layers)
    entering.forget()
    entering.compare([states[2], states[2]])
    assert entering.compared == 0


def test_a_dataset_of_another_width_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(plugin, "check_arguments", lambda _: None)
    work = place(tmp_path, {1: [5, 6]}, [1], 32, shards=1).work
    runner = SimpleNamespace(server_args=SimpleNamespace(), model_config=SimpleNamespace(hidden_size=64))
    with pytest.raises(DumpError, match="the model's hidden size is 64, the dataset's is 32"):
        plugin.start(runner, work)
