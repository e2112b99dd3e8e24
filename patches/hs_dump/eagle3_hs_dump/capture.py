"""Which residual streams the model hands out.

Boundary b is the residual stream entering layer b. Models keep what they capture in `layers_to_capture`, with exactly
that meaning, but the *argument* of `set_eagle3_layers_to_capture` means b - 1 or b, by model, by version, and in
DeepSeek even by value. So: set through the setter (it also switches capturing on), then read back and correct.
"""

from collections.abc import Iterable
from typing import Any

import torch

from . import DumpError

SETTER = "set_eagle3_layers_to_capture"
LIST = "layers_to_capture"
FLAG = "_is_layer_to_capture"
"""Some mixture-of-experts models look at a flag on each layer instead of the list."""


def _find(model: torch.nn.Module, attribute: str) -> list[torch.nn.Module]:
    return [module for module in model.modules() if hasattr(module, attribute)]


def _flagged(layers: Iterable[Any]) -> list[int]:
    return [number for number, layer in enumerate(layers) if getattr(layer, FLAG, False)]


def set_boundaries(model: torch.nn.Module, boundaries: tuple[int, ...]) -> list[int]:
    """Makes the model capture exactly `boundaries`; gives what it will capture, read back from it."""
    setters = _find(model, SETTER)
    if not setters:
        raise DumpError(f"{type(model).__name__} has no {SETTER}: this SGLang cannot capture its hidden states")
    wanted = list(boundaries)
    getattr(setters[0], SETTER)([boundary - 1 for boundary in wanted])  # the outermost one delegates inwards
    holders = [module for module in _find(model, LIST) if getattr(module, LIST)]
    if len(holders) != 1:
        raise DumpError(f"{type(model).__name__} holds {LIST} in {len(holders)} places after {SETTER}, not in one")
    inner = holders[0]
    current = getattr(inner, LIST)
    if sorted(current) != wanted:
        setattr(inner, LIST, type(current)(wanted))
    layers = getattr(inner, "layers", ())
    if _flagged(layers):
        for number, layer in enumerate(layers):
            setattr(layer, FLAG, number in wanted)
        if _flagged(layers) != wanted:
            raise DumpError(f"boundaries {wanted} cannot be captured: {type(inner).__name__} has {len(layers)} layers")
    effective = sorted(getattr(inner, LIST))
    if effective != wanted:
        raise DumpError(f"asked {type(inner).__name__} to capture {wanted}, it will capture {effective}")
    return effective


def captured_layers(model: torch.nn.Module) -> Any:
    """The layers that the boundaries count, after `set_boundaries`."""
    (inner,) = (module for module in _find(model, LIST) if getattr(module, LIST))
    return getattr(inner, "layers", ())


def split_states(aux: Any, final: torch.Tensor, hidden_size: int, count: int) -> list[torch.Tensor]:
    """The captured states and the final one, each `[T, H]`.

    Args:
        aux: a list of `count` tensors `[T, H]`, or one packed `[T, count * H]` (newer DeepSeek).
        final: `[T, H]`, after the final norm.
    """
    if aux is None:
        states = []
    elif isinstance(aux, torch.Tensor):
        states = list(aux.split(hidden_size, dim=-1))
    else:
        states = list(aux)
    if len(states) != count:
        raise DumpError(f"the model captured {len(states)} states, not {count}: is a boundary beyond its last layer?")
    states.append(final)
    for state in states:
        if state.shape != (final.shape[0], hidden_size):
            raise DumpError(f"a captured state has shape {tuple(state.shape)}, not (tokens, {hidden_size})")
    return states
