"""Stand-ins for packages that a peer imports at its top and that no step of training calls.

Only for hosts that have no network and do not have them; where the real one is installed it is used.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

NAMES = ("datasets", "openai", "openai.types", "openai.types.chat", "openai.types.completion")


class NeverCalled:
    """Takes the place of a class or function; using it is a mistake of the benchmark."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise AssertionError("a stand-in of bench/peers was used: install the real package")


class StandIn(ModuleType):
    """Has whatever is imported from it, also for the annotations of functions that are never called."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return NeverCalled


def provide() -> list[str]:
    """Puts a stand-in for each missing package in place; returns their names."""
    top = [name for name in NAMES if "." not in name and name not in sys.modules]
    # A folder of that name on the path, such as this repository's `datasets`, is no package: it has no origin.
    missing = {name for name in top if getattr(importlib.util.find_spec(name), "origin", None) is None}
    for name in NAMES:
        if name.split(".")[0] in missing:
            module = StandIn(name)
            module.__path__ = []
            module.__spec__ = ModuleSpec(name, None)  # who asks whether it is installed gets an answer, not an error
            sys.modules[name] = module
    return sorted(missing)
