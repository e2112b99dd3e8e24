"""Peaks of GPUs: those that are known, and no invented one."""

import pytest
import torch

from eagle3.training.peak import bf16_peak, peak_of


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA Something New", None),
        ("", None),
    ],
)
def test_known_or_none(name: str, peak: float | None) -> None:
    assert bf16_peak(name) == peak


def test_other_arithmetic_has_no_bf16_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    gpu = torch.device("cuda", 0)
    assert peak_of(gpu, "bf16-mixed") == 989.4e12
    assert peak_of(gpu, "32-true") is None
    assert peak_of(torch.device("cpu"), "bf16-mixed") is None
