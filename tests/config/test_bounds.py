"""Every number of the configuration has a least value, and one that is too small is named."""

import copy
import dataclasses
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eagle3.config.bounds import ABOVE_ZERO, LEAST, MOST
from eagle3.config.schema import Config, DatasetConfig, RopeScaling, ServerConfig, ShapeConfig, TargetConfig
from eagle3.config.validate import validate
from eagle3.errors import ConfigError

NEGATIVE_MEANS_SOMETHING: tuple[str, ...] = ()
"""Keys of numbers that may be below 0; none so far."""
MAY_REPEAT = ("optim.betas",)
KINDS: dict[str, type] = {}
"""Of each number; filled beside NUMBERS."""


def good() -> Config:
    cfg = Config(
        name="t",
        target=TargetConfig(name="t", path="some/model", shape=ShapeConfig(64, 8, 100, 4096)),
        dataset=DatasetConfig(name="d", path="d.jsonl"),
        server=ServerConfig(device="cpu"),
    )
    cfg.drafter.draft_vocab_size = 50
    cfg.drafter.rope_scaling = RopeScaling("yarn", 2.0, 2048)
    return cfg


def numbers(kind: type, key: str = "") -> Iterator[tuple[str, Callable[[Any, Any], None]]]:
    """(key, what sets it in an object of this class) of each number in a dataclass, those in lists among them."""
    for name, hint in typing.get_type_hints(kind).items():
        where = f"{key}.{name}" if key else name
        hint = RopeScaling if where == "drafter.rope_scaling" else hint  # noqa: PLW2901 (Any: made typed by rope.py)
        (inner,) = [x for x in options(hint) if x is not type(None)][:1]
        if inner in (int, float):
            KINDS[where] = inner
            yield where, lambda found, value, name=name: setattr(found, name, value)
        elif dataclasses.is_dataclass(inner):
            yield from (
                (at, lambda found, value, name=name, put=put: put(getattr(found, name), value))
                for at, put in numbers(typing.cast(type, inner), where)
            )
        elif typing.get_origin(inner) is list:
            (element,) = typing.get_args(inner)
            if element in (int, float):
                KINDS[where] = element
                yield (
                    where,
                    lambda found, value, name=name: setattr(found, name, [value, *(getattr(found, name) or [])]),
                )
            elif dataclasses.is_dataclass(element):
                yield from (
                    (at, lambda found, value, name=name, put=put: put(getattr(found, name)[0], value))
                    for at, put in numbers(typing.cast(type, element), where)
                )


def lists(kind: type, key: str = "") -> Iterator[tuple[str, Any]]:
    """(key, type of an element) of each list in a dataclass."""
    for name, hint in typing.get_type_hints(kind).items():
        where = f"{key}.{name}" if key else name
        (inner,) = [x for x in options(hint) if x is not type(None)][:1]
        if dataclasses.is_dataclass(inner):
            yield from lists(typing.cast(type, inner), where)
        elif typing.get_origin(inner) is list:
            yield where, typing.get_args(inner)[0]


def options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


NUMBERS = dict(numbers(Config))


def test_the_configuration_without_a_fault_is_right() -> None:
    validate(good())
    assert len(NUMBERS) > 60
    assert {"server.stall_timeout_s", "evaluate.drafts.topk", "target.shape.num_layers", "optim.betas"} <= set(NUMBERS)


@pytest.mark.parametrize("key", [key for key in NUMBERS if key not in NEGATIVE_MEANS_SOMETHING])
def test_a_negative_number_is_refused_by_its_key(key: str) -> None:
    cfg = good()
    NUMBERS[key](cfg, -1)
    with pytest.raises(ConfigError) as raised:
        validate(cfg)
    first, _, last = key.rpartition(".")
    assert str(raised.value).startswith(first.split(".")[0])
    assert last in str(raised.value).split(":")[0]


def test_the_bounds_are_of_keys_that_are_there() -> None:
    assert set(LEAST) | set(MOST) | set(ABOVE_ZERO) <= set(NUMBERS)
    for key, least in LEAST.items():
        cfg = good()
        NUMBERS[key](cfg, least - 1)
        with pytest.raises(ConfigError, match=rf"too small; give at least {least}"):
            validate(cfg)
    for key, most in MOST.items():
        cfg = good()
        NUMBERS[key](cfg, most + 1)
        with pytest.raises(
            ConfigError, match=rf"{key.rpartition('.')[2]}: {most + 1} is too large; give at most {most}"
        ):
            validate(cfg)
    for key in ABOVE_ZERO:
        cfg = good()
        NUMBERS[key](cfg, 0.0)
        with pytest.raises(ConfigError, match="give a number above 0"):
            validate(cfg)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("key", [key for key, kind in KINDS.items() if kind is float])
def test_only_finite_numbers_are_taken(key: str, value: float) -> None:
    cfg = good()
    NUMBERS[key](cfg, value)
    with pytest.raises(ConfigError) as raised:
        validate(cfg)
    assert key.rpartition(".")[2] in str(raised.value)


def test_nothing_is_there_twice_in_a_list() -> None:
    """What is measured twice counts twice, and costs twice."""
    for key, field in lists(Config):
        if key in MAY_REPEAT:
            continue
        cfg = good()
        group, name = cfg, key.rpartition(".")[2]
        for part in key.split(".")[:-1]:
            group = getattr(group, part)
        one = getattr(group, name)[:1] if getattr(group, name) else ["a"]
        setattr(group, name, [*one, *copy.deepcopy(one)] if field is not int else [3, 3])
        with pytest.raises(ConfigError, match=rf"{name}.*(twice|without repeats)"):
            validate(cfg)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda cfg: setattr(cfg.target, "path", " "), "target.path: empty"),
        (lambda cfg: setattr(cfg.layers, "boundaries", [0, 3]), "layers.boundaries: [0] outside"),
        (lambda cfg: setattr(cfg.server, "stall_timeout_s", 0), "server.stall_timeout_s: 0 is too small"),
        (
            lambda cfg: setattr(cfg.evaluate, "temperatures", [0.0, float("inf")]),
            "temperatures[1]: inf is",
        ),
        (lambda cfg: setattr(cfg.dataset, "tokens", -5), "dataset.tokens: -5 is too small"),
        (lambda cfg: setattr(cfg.optim, "clip_norm", 0.0), "optim.clip_norm: 0.0 is too small"),
    ],
)
def test_values_that_make_no_sense(change: Callable[[Config], None], says: str) -> None:
    cfg = good()
    cfg.target.shape = None
    change(cfg)
    with pytest.raises(ConfigError) as raised:
        validate(cfg)
    assert says in str(raised.value)


def test_random_weights_answer_nothing() -> None:
    cfg = good()
    cfg.server.flags.serving["load_format"] = "dummy"
    validate(cfg)
    cfg.prepare.regenerate = True
    with pytest.raises(ConfigError, match=r"server\.flags\.serving\.load_format: dummy are random weights"):
        validate(cfg)
