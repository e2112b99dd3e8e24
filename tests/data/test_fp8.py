"""States in 8 bits: what is kept of a row, and a dataset of such rows from writing to training batches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tests.data.small_datasets import SHAPE, prompts_of, states_of, write
from torch import Tensor

from eagle3.data.assembly import Assembly
from eagle3.data.dataset import SequenceDataset
from eagle3.data.fp8 import dequantise, quantise
from eagle3.data.layout import StateShape
from eagle3.data.ledger import Committed
from eagle3.data.manifest import Manifest
from eagle3.data.placement import place
from eagle3.data.shards import HiddenStates
from eagle3.data.skeleton import PARTIAL, row_checksums
from eagle3.data.space import dataset_bytes
from eagle3.data.verify import verify
from eagle3.data.writer import blank_manifest
from eagle3.errors import DataError

EIGHT = replace(SHAPE, dtype="fp8_e4m3")
LENGTHS = [5, 1, 9, 4, 7]
TINY = 12 * EIGHT.token_bytes / (1 << 30)


def dequantised(rows: Tensor, scales: Tensor) -> Tensor:
    out = torch.empty(rows.shape, dtype=torch.bfloat16)
    dequantise(rows, scales, out)
    return out


def as_read(rows: Tensor) -> Tensor:
    """By torch's own conversions, in float32."""
    peaks = rows.float().abs().amax(-1)
    scales = torch.where(peaks > 0, peaks / torch.tensor([448.0]), 1.0)[:, None]
    return ((rows.float() / scales).to(torch.float8_e4m3fn).float() * scales).bfloat16()


def test_every_number_is_that_of_torch():
    rows = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    rows = rows[~torch.isnan(rows.float())].repeat(5, 1)
    scales = torch.tensor([1.0, 0.123, 1e-3, 2.05e-43, 7.5e35])
    assert torch.equal(dequantised(rows, scales), (rows.float() * scales[:, None]).bfloat16())


def test_a_long_sequence_is_converted_in_parts(monkeypatch):
    monkeypatch.setattr("eagle3.data.fp8.CHUNK", 100)
    rows = states_of(50, 0)["final"]
    out = torch.zeros(50, 3 * 8, dtype=torch.bfloat16)
    dequantise(*quantise(rows), out[:, 8:16])
    assert torch.equal(out[:, 8:16], as_read(rows))
    assert not out[:, :8].any()
    assert not out[:, 16:].any()


@given(st.lists(st.floats(-1.0, 1.0, width=32), min_size=8, max_size=8), st.integers(-100, 127))
@settings(max_examples=300, deadline=None)
def test_a_row_is_kept_up_to_a_sixteenth_of_each_number(numbers, exponent):
    row = (torch.tensor([[*numbers, 1.0]]) * 2.0**exponent).bfloat16()
    error = (dequantised(*quantise(row)).double() - row.double()).abs()
    # Half a step of three bits of mantissa and of bfloat16; or of the smallest numbers beside the row's largest.
    bound = torch.clamp(row.double().abs() * 2**-4, min=2.3e-6 * 2.0**exponent)
    assert bool((error <= bound).all())


@pytest.mark.parametrize("peak", [3.3e38, 1e30, 448.0, 1.0, 1e-30, 1e-38, 9.2e-41])
def test_the_peak_of_a_row_is_kept(peak):
    row = torch.tensor([[peak, -peak, 0.0, peak / 2]]).bfloat16()
    torch.testing.assert_close(dequantised(*quantise(row)), row, rtol=2**-8, atol=0.0)


def test_zeros_stay_zeros():
    rows, scales = quantise(torch.zeros(2, 8, dtype=torch.bfloat16))
    assert scales.tolist() == [1.0, 1.0]
    assert not dequantised(rows, scales).any()


def test_what_was_written_is_read_and_verified(tmp_path):
    manifest = write(tmp_path, LENGTHS, TINY, EIGHT)
    assert len(manifest.shards) == 3
    assert not list(verify(tmp_path))
    data = HiddenStates(tmp_path)
    for i, length in enumerate(LENGTHS):
        got = data.read(i, ["input_ids", *EIGHT.states])
        for state, rows in states_of(length, i).items():
            assert torch.equal(got[state], as_read(rows))
    with safe_open(tmp_path / manifest.shards[0].file, "pt") as file:
        stored, scales = file.get_tensor("final"), file.get_tensor("scale.final")
    assert torch.equal((stored.float() * scales[:, None]).bfloat16()[:5], data.read(0, ["final"])["final"])


def test_a_batch_is_what_is_read(tmp_path):
    write(tmp_path, LENGTHS, TINY, EIGHT)
    dataset = SequenceDataset(HiddenStates(tmp_path), np.arange(5), [1, 3])
    batch = dataset.batch([4, 0, 2])
    read = [dataset[i] for i in (4, 0, 2)]
    assert batch.states.dtype == batch.final.dtype == torch.bfloat16
    for k, name in enumerate(dataset.names):
        assert torch.equal(batch.states[:, 8 * k : 8 * k + 8], torch.cat([sequence[name] for sequence in read]))
    assert torch.equal(batch.final, torch.cat([sequence["final"] for sequence in read]))
    assert batch.input_ids.tolist() == torch.cat([sequence["input_ids"] for sequence in read]).tolist()


def test_half_of_the_bytes():
    wide, narrow = (dataset_bytes(17_300_000, 7168, 4, dtype) for dtype in ("bfloat16", "fp8_e4m3"))
    assert round(wide / 2**30) == 924
    assert round(narrow / 2**30) == 462


def test_a_hidden_size_that_does_not_keep_tensors_aligned():
    with pytest.raises(DataError, match="12 is not a multiple of 8, which shards of fp8_e4m3 need"):
        StateShape(SHAPE.states, 12, "fp8_e4m3")


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("part", ["rows", "scales"])
def test_a_flipped_byte_is_named(tmp_path, part):
    manifest = write(tmp_path, LENGTHS, TINY, EIGHT)
    shard = manifest.shards[2]
    flip(tmp_path / shard.file, getattr(manifest.layout(shard), part)("boundary.3", 5, 1)[0])
    (fault,) = verify(tmp_path)
    assert (fault.file, fault.sequence, fault.state) == (shard.file, 112, "boundary.3")
    assert "7 rows don't have their checksum" in fault.text


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_flipped_byte_is_found_in_its_shard(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("d")
    shard = data.draw(st.sampled_from(write(folder, LENGTHS, TINY, EIGHT).shards))
    flip(folder / shard.file, data.draw(st.integers(0, shard.bytes - 1)))
    assert next(verify(folder)).file == shard.file


@pytest.mark.parametrize(
    ("part", "content", "expected"),
    [
        ("rows", b"\x7f", "not finite"),
        ("rows", b"\xff", "not finite"),
        ("scales", b"\0\0\x80\x7f", "not finite"),
        ("scales", bytes(4), "a scale that is not positive"),
        ("scales", b"\0\0\x80\xbf", "a scale that is not positive"),
    ],
    ids=["nan", "minus nan", "infinite scale", "zero scale", "negative scale"],
)
def test_rows_that_are_no_numbers_are_found_though_their_checksum_is_right(
    tmp_path, monkeypatch, part, content, expected
):
    """A writer that makes them writes their checksum too."""
    monkeypatch.setattr("eagle3.data.writer.row_checksums", harmed(part, content))
    write(tmp_path, LENGTHS, TINY, EIGHT)
    assert [fault.state for fault in verify(tmp_path)] == ["final"] * len(LENGTHS)
    assert expected in next(verify(tmp_path)).text


def harmed(part: str, content: bytes):
    def checksums(descriptor: int, layout, row: int, length: int) -> list[int]:
        with open(f"/proc/self/fd/{descriptor}", "r+b") as file:  # noqa: PTH123
            file.seek(getattr(layout, part)("final", row, length)[0])
            file.write(content)
        return row_checksums(descriptor, layout, row, length)

    return checksums


@pytest.mark.parametrize("part", [None, "rows", "scales"])
def test_a_new_run_takes_a_sequence_whose_rows_and_scales_have_their_checksum(tmp_path, part):
    write(tmp_path / "whole", LENGTHS, shape=EIGHT)
    placement = place(prompts_of(LENGTHS), EIGHT, 2.0, 100)
    (plan,) = placement.shards
    partial = tmp_path / (plan.file + PARTIAL)
    (tmp_path / "whole" / plan.file).rename(partial)
    committed = []
    with partial.open("r+b", buffering=0) as file:
        slot = plan.layout.slots["checksums"]
        file.seek(slot.offset)
        file.write(bytes(slot.nbytes))  # as they are before a shard is finished
        for i in (1, 2, 4):
            crc = row_checksums(file.fileno(), plan.layout, int(placement.row[i]), LENGTHS[i])
            committed.append(Committed(int(placement.sample_ids[i]), LENGTHS[i], crc, None))
    if part:
        flip(partial, getattr(plan.layout, part)("final", int(placement.row[2]), 1)[0])
    assembly = Assembly(tmp_path, placement, blank_manifest(EIGHT, placement, {}))
    assembly.resume(iter(committed))
    assert list(assembly.missing()) == ([0, 2, 3] if part else [0, 3])


def test_only_a_dataset_in_8_bits_says_what_that_loses(tmp_path):
    manifest = write(tmp_path, LENGTHS)
    assert "quantisation" not in (tmp_path / "manifest.json").read_text()
    assert Manifest.load(tmp_path) == manifest
    lost = {"kl_divergence": 0.5, "top1_agreement": 0.75, "positions": 4}
    lost |= {name: dict.fromkeys(manifest.states, 0.02) for name in ("relative_rms", "max_relative_row")}
    manifest.quantisation = lost
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path).quantisation == lost
