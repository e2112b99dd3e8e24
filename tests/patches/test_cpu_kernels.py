"""The CPU stand-in for SGLang's compiled kernels."""

import importlib.util
from pathlib import Path

import pytest

STAND_IN = Path(__file__).resolve().parents[2] / "patches" / "cpu_kernels" / "sgl_kernel" / "__init__.py"


def test_any_kernel_can_be_imported_and_none_called():
    spec = importlib.util.spec_from_file_location("sgl_kernel_stand_in", STAND_IN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(NotImplementedError, match="assign_req_to_token_pool_cpu"):
        module.assign_req_to_token_pool_cpu()
    with pytest.raises(AttributeError):
        module.__no_such_dunder__  # noqa: B018
