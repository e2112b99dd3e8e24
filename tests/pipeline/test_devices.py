"""GPUs that jobs of one machine share out."""

import os
from contextlib import ExitStack

import pytest

from eagle3.errors import ConfigError
from eagle3.pipeline.devices import _try, taken


def test_each_job_has_a_device_of_its_own_also_where_devices_overlap() -> None:
    a, b, c = (f"test-{os.getpid()}-{name}" for name in "abc")
    devices, notes = [f"{a},{b}", c], []
    with taken(devices, notes.append) as first:
        assert first.environment == {"CUDA_VISIBLE_DEVICES": f"{a},{b}"}
        assert len(first.descriptors) == 2
        with taken(devices, notes.append) as second, ExitStack() as stack:
            assert second.environment == {"CUDA_VISIBLE_DEVICES": c}
            assert _try(f"{b},{c}", stack) is None
            assert _try(b, stack) is None
        with taken([f"{b},{c}", c], notes.append) as third:
            assert third.environment == {"CUDA_VISIBLE_DEVICES": c}
    with taken([b], notes.append), taken([], notes.append) as whatever:
        assert whatever.environment == {}
    assert notes == []
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES takes"), taken(["../x"], notes.append):
        pass
