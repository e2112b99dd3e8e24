"""`drafter.rope_scaling`: free in the composed configuration, so that a command line can give it whole; typed here."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from eagle3.config.schema import RopeScaling
from eagle3.errors import ConfigError

KEY = "drafter.rope_scaling"
TYPES = ("linear", "llama3", "yarn")
_FIELDS = {field.name: field for field in dataclasses.fields(RopeScaling)}
_ELSEWHERE = {"rope_type": "type", "original_max_position_embeddings": "original_max_position"}
"""What a model's config.json calls them."""
_EXAMPLE = f"e.g. '{KEY}={{type: linear, factor: 2}}'"


def rope_scaling_of(given: Any) -> RopeScaling | None:
    """The typed form of a mapping; null and what is typed already stay.

    Raises:
        ConfigError: no mapping; a key that is none, or a value of another type; type or factor missing.
    """
    if given is None or isinstance(given, RopeScaling):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"{KEY}: {given!r} is not a mapping; give one, {_EXAMPLE}, or null")
    for name, value in given.items():
        if name not in _FIELDS:
            close = _ELSEWHERE.get(str(name)) or next(iter(difflib.get_close_matches(str(name), _FIELDS, n=1)), None)
            hint = f"did you mean {KEY}.{close}?" if close else f"known here: {', '.join(_FIELDS)}"
            raise ConfigError(f"{KEY}.{name}: no such key; {hint}")
        kinds = {"type": str, "original_max_position": int}.get(str(name), (int, float))
        if isinstance(value, bool) or not (isinstance(value, kinds) or (name == "original_max_position" and not value)):
            what = {"type": f"one of {', '.join(TYPES)}", "original_max_position": "a whole number"}
            raise ConfigError(f"{KEY}.{name}: {value!r} is not {what.get(str(name), 'a number')}")
    for name in ("type", "factor"):
        if name not in given:
            raise ConfigError(f"{KEY}.{name}: not set; give both type and factor, {_EXAMPLE}")
    return RopeScaling(**{str(name): value for name, value in given.items()})


def check_rope(theta: float | None, scaling: RopeScaling | None) -> None:
    """The rules between its fields.

    Args:
        theta: `drafter.rope_theta`; null where it is the target's and not known yet.

    Raises:
        ConfigError: angles could not be computed, or not as they are meant.
    """
    if theta is not None and theta <= 1:
        raise ConfigError(f"drafter.rope_theta={theta}: must be above 1; 10000 and more are usual.")
    if scaling is None:
        return
    if scaling.type not in TYPES:
        raise ConfigError(f"{KEY}.type={scaling.type!r}: must be linear, llama3 or yarn.")
    if scaling.factor < 1:
        raise ConfigError(f"{KEY}.factor={scaling.factor}: must be at least 1.")
    if scaling.type != "linear" and not scaling.original_max_position:
        raise ConfigError(
            f"{KEY}.original_max_position: not set, and {scaling.type} needs it: the context that the target was "
            "trained with before it was scaled (original_max_position_embeddings in its config.json)."
        )
    if scaling.type == "linear" and scaling.original_max_position:
        raise ConfigError(f"{KEY}.original_max_position: linear scaling has none; leave it out")
    for kind, low, high in (("llama3", "low_freq_factor", "high_freq_factor"), ("yarn", "beta_slow", "beta_fast")):
        least, most = getattr(scaling, low), getattr(scaling, high)
        if scaling.type == kind and least >= most:
            raise ConfigError(f"{KEY}.{low}={least}: must be below {KEY}.{high}={most}.")
