"""What a GPU can do at most: the denominator of MFU."""

import torch

_TFLOPS = {
    # Dense bf16 with fp32 accumulation, by NVIDIA's datasheets (whose headline figures, with sparsity, are twice that).
    "B200": 2250.0,
    "GH200 480GB": 989.4,
    "H200": 989.4,
    "H200 NVL": 835.5,
    "H100 80GB HBM3": 989.4,
    "H100 NVL": 835.5,
    "H100 PCIe": 756.0,
    "H800": 989.4,
    "H20": 148.0,
    "A100-SXM4-40GB": 312.0,
    "A100-SXM4-80GB": 312.0,
    "A100-PCIE-40GB": 312.0,
    "A100 80GB PCIe": 312.0,
    "A800-SXM4-80GB": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "A40": 149.7,
    "A30": 165.0,
    "A10": 125.0,
    "GeForce RTX 4090": 165.2,
}


def bf16_peak(name: str) -> float | None:
    """FLOPs a second of the GPU that torch calls `name`; None for one that is not known, and for a MIG slice."""
    found = _TFLOPS.get(name.removeprefix("NVIDIA "))
    return None if found is None else found * 1e12


def peak_of(device: torch.device, precision: str) -> float | None:
    """FLOPs a second that training in `precision` (Lightning's name) could reach on `device`, where that is known."""
    if device.type != "cuda" or not precision.startswith("bf16"):
        return None
    return bf16_peak(torch.cuda.get_device_name(device))
