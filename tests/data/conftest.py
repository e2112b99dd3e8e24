"""What several tests of hidden states are given."""

import pytest
from tests.data.exchange_cases import write_target

from eagle3.target.info import TargetInfo


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetInfo:
    return write_target(tmp_path_factory.mktemp("target") / "t")
