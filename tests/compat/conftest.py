"""SGLang's source in several versions, unpacked once a session."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.compat.wheels import UnreachableError, unpack

Sources = Callable[[str], Path]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The `sglang/` folder of a version, its metadata beside it. Skips where there is neither wheel nor network."""
    there: dict[str, Path] = {}

    def source(version: str) -> Path:
        if version not in there:
            try:
                there[version] = unpack(version, tmp_path_factory.mktemp(version))
            except UnreachableError as error:
                pytest.skip(str(error))
        return there[version]

    return source
