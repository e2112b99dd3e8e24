"""Puts the peers on the path, and what they compile into eager mode: the arithmetic is compared, not Inductor."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.peers import peer_path

VERSIONS = {"specforge": "0.2.0", "speculators": "0.9.0"}


def _on_path(name: str) -> str:
    folder = str(peer_path(name, VERSIONS[name]))
    if folder not in sys.path:
        sys.path.append(folder)
    return VERSIONS[name]


@pytest.fixture(scope="session")
def specforge() -> str:
    """The installed version."""
    return _on_path("specforge")


@pytest.fixture(scope="session")
def speculators() -> str:
    return _on_path("speculators")


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    stance: Any = torch.compiler.set_stance("force_eager")
    with stance:
        yield
