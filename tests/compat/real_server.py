"""The dump with an SGLang of another environment, by hand: it takes a second environment of 10 GB.

    EAGLE3_SERVER_PYTHON=/path/to/env/bin/python .venv/bin/python -m pytest tests/compat/real_server.py -n 0

Not collected by `make test`; what it checks is what tests/e2e/test_dump.py checks with the installed version.
"""

import os
from collections.abc import Iterator

import pytest
from tests.e2e import dumping
from tests.e2e.dumping import DumpTests, Served, serve
from tests.e2e.models import tiny_deepseek, tiny_llama, tiny_qwen3

from eagle3.config.schema import Config

MODELS = {"llama": (tiny_llama, [1, 3, 5]), "qwen3": (tiny_qwen3, [1, 3, 5]), "deepseek": (tiny_deepseek, [1, 3, 4])}


@pytest.fixture(scope="module", params=list(MODELS))
def served(request, tmp_path_factory) -> Iterator[Served]:
    make, boundaries = MODELS[request.param]
    ours = dumping.config

    def theirs(*args, **kwargs) -> Config:
        cfg = ours(*args, **kwargs)
        cfg.server.python = os.environ["EAGLE3_SERVER_PYTHON"]
        return cfg

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dumping, "config", theirs)
        yield from serve(make, boundaries, tmp_path_factory.mktemp(request.param))


class TestDump(DumpTests):
    """Every model."""
