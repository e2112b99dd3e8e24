"""A target, and a drafter for it that somebody else made."""

from pathlib import Path

import pytest
from tests.drafter.foreign import as_others, make_ours
from tests.drafter.targets import make_target

from eagle3.config.schema import DrafterConfig
from eagle3.drafter.shape import DrafterShape
from eagle3.target.info import TargetInfo


@pytest.fixture
def target(tmp_path: Path) -> TargetInfo:
    return make_target(tmp_path / "target")


@pytest.fixture
def theirs(tmp_path: Path, target: TargetInfo) -> Path:
    make_ours(tmp_path / "theirs", target, DrafterShape.build(DrafterConfig(draft_vocab_size=48), target, 3))
    as_others(tmp_path / "theirs")
    return tmp_path / "theirs"
