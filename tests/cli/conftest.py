"""A target, and a drafter for it that somebody else made."""

from pathlib import Path

import pytest
from tests.drafter.foreign import make_theirs
from tests.drafter.targets import make_target

from eagle3.target.info import TargetInfo


@pytest.fixture
def target(tmp_path: Path) -> TargetInfo:
    return make_target(tmp_path / "target")


@pytest.fixture
def theirs(tmp_path: Path, target: TargetInfo) -> Path:
    return make_theirs(tmp_path / "theirs", target)
