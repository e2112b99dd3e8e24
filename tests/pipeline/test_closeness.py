"""How far two drafters of one training are said to be apart."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3.pipeline.closeness import figures_apart, weights_apart


def tensors(noise: float) -> dict[str, Tensor]:
    """A drafter for a target of 128k tokens: its offsets are as large as a real one's."""
    generator = torch.Generator().manual_seed(0)
    kept = torch.arange(0, 128_000, 4)
    weights = {name: torch.randn(64, 64, generator=generator) for name in ("fc.weight", "lm_head.weight")}
    other = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    return {
        "fc.weight": (weights["fc.weight"] + 2 * noise * other).bfloat16(),
        "lm_head.weight": (weights["lm_head.weight"] + noise * other).bfloat16(),
        "norm.weight": torch.ones(64).bfloat16(),
        "d2t": kept - torch.arange(len(kept)),
        "t2d": torch.arange(128_000) % 4 == 0,
    }


def apart(folder: Path, before: dict[str, Tensor], after: dict[str, Tensor]) -> str:
    save_file(before, folder / "before.safetensors")
    save_file(after, folder / "after.safetensors")
    return weights_apart(folder / "before.safetensors", folder / "after.safetensors")


def test_offsets_of_the_vocabulary_do_not_drown_the_weights(tmp_path: Path) -> None:
    said = apart(tmp_path, tensors(0.0), tensors(0.1))
    assert said == "its weights differ by 0.16 of their norm, most of all fc.weight, by 0.2 of its own"


def test_another_draft_vocabulary_is_named(tmp_path: Path) -> None:
    before, after = tensors(0.0), tensors(0.0)
    after["d2t"] = after["d2t"] + 1
    assert apart(tmp_path, before, after) == "d2t is not the same"
    after["t2d"] = ~after["t2d"]
    after["norm.weight"] = after["norm.weight"] * 2
    assert apart(tmp_path, before, after).startswith("d2t, t2d are not the same, and its weights differ by 0.088 of")


def test_another_shape_is_named(tmp_path: Path) -> None:
    before, after = tensors(0.0), tensors(0.0)
    after["fc.weight"] = after["fc.weight"][:32].contiguous()
    after["layers.1.norm.weight"] = after.pop("norm.weight")
    said = apart(tmp_path, before, after)
    assert said == "it has another shape (layers.1.norm.weight, norm.weight, fc.weight)"


def test_a_tensor_of_zeros_and_a_file_that_says_the_same(tmp_path: Path) -> None:
    before, after = {"a": torch.ones(4), "bias": torch.zeros(4)}, {"a": torch.ones(4), "bias": torch.zeros(4)}
    assert apart(tmp_path, before, after) == "its tensors are the same, the file is not"
    after["bias"] = torch.full((4,), 0.5)
    said = apart(tmp_path, before, after)
    assert said == "its weights differ by 0.5 of their norm, most of all bias, by inf of its own"


def test_held_out_figures_have_a_tolerance() -> None:
    then, now = ({"val/accept_length": length, "val/loss": 5.854} for length in (3.815, 3.817))
    said = figures_apart(then, now, same_training=True)
    assert said.startswith(
        "held-out accept length 3.817 against 3.815 then (0.05%), loss 5.854 against 5.854 then (0.00%): "
        "the accept length is within the 2%"
    )
    for length in (3.7, 3.93):
        said = figures_apart(then, {"val/accept_length": length}, same_training=True)
        assert said.startswith(f"held-out accept length {length:.3f} against 3.815 then (3.0")
        assert "WARNING" in said
        other = figures_apart(then, {"val/accept_length": length}, same_training=False)
        assert "another training" in other
        assert "WARNING" not in other
    assert figures_apart({}, now, same_training=True) == "there are no held-out figures of both to compare"
