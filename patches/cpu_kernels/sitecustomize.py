"""No garbage collection while SGLang is imported. Python runs this first in each of the server's processes.

An import makes a million and a half objects, nearly all of which stay. Python would go through them two thousand
times meanwhile, which is a quarter of the start: 2 s of CPU in each of three processes. The first collection, which is
SGLang's own before it sizes its cache, or the one that `eagle3.server.launch` asks for when the server is ready, puts
things back as they were; so does the first of Python's own, should neither come.
"""

import gc
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

AT_LEAST = 3_000_000
"""Objects until Python collects by itself: more than an import makes."""
_usual = gc.get_threshold()


def _as_usual(phase: str, info: dict[str, int]) -> None:
    gc.callbacks.remove(_as_usual)
    gc.set_threshold(*_usual)


gc.callbacks.append(_as_usual)
gc.set_threshold(AT_LEAST, *_usual[1:])

# Python runs one module of this name only: the one that this hides, if there is one, is run from here.
_elsewhere = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
_hidden = PathFinder.find_spec(__name__, _elsewhere)
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(module_from_spec(_hidden))
