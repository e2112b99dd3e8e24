"""The CPU stand-in."""

import importlib

import eagle3_cpu.norm
import pytest
import torch


def test_rms_norm_is_the_definition():
    x = torch.randn(7, 64).bfloat16()
    weight = torch.rand(64).bfloat16()
    wide = x.double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(eagle3_cpu.norm.rms_norm(x, weight, 1e-5), wanted.bfloat16(), rtol=2**-7, atol=1e-6)


def test_any_kernel_can_be_imported_and_none_called(monkeypatch):
    from pathlib import Path

    spec = importlib.util.spec_from_file_location(
        "sgl_kernel_stand_in", Path(eagle3_cpu.__file__).parents[1] / "sgl_kernel" / "__init__.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(NotImplementedError, match="assign_req_to_token_pool_cpu"):
        module.assign_req_to_token_pool_cpu()
