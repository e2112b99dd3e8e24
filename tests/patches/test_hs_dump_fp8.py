"""States in 8 bits through staging and writers, beside a shard in bfloat16; against the formula in plain float32."""

import zlib

import pytest
import torch
from eagle3_hs_dump import staging
from eagle3_hs_dump.quantise import quantise
from tests.e2e.placing import place
from tests.patches.test_hs_dump_writer import HIDDEN, SEQUENCES, Pipe, rows

from eagle3.data import fp8

EIGHT = (5, 3)
"""Samples of the first shard, which is in 8 bits; the second, with sample 8, is in bfloat16."""


@pytest.fixture
def pipe(tmp_path):
    return Pipe(place(tmp_path, SEQUENCES, [1, 4], HIDDEN, 2, dtypes=("fp8_e4m3", "bfloat16")))


def expected(state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    stored, scales = [], []
    for row in state.float():
        peak = row.abs().max()
        scales.append(peak / torch.tensor(448.0) if peak > 0 else torch.tensor(1.0))
        stored.append((row / scales[-1]).to(torch.float8_e4m3fn))
    return torch.stack([s.view(torch.uint8) for s in stored]), torch.stack(scales)


def check(pipe: Pipe, sample: int, states: list[torch.Tensor]) -> None:
    stored, row = pipe.placed.read(sample), pipe.placed.ledger()[sample]
    assert row["bad"] is None
    for name, state, crc in zip(pipe.placed.states, states, row["crc"], strict=True):
        wanted, scales = expected(state)
        assert torch.equal(stored[name].view(torch.uint8), wanted), (sample, name)
        assert torch.equal(stored[f"scale.{name}"], scales), (sample, name)
        assert crc == zlib.crc32(scales.numpy().tobytes(), zlib.crc32(wanted.numpy().tobytes()))


@pytest.mark.parametrize("chunk", [staging.CHUNK_BYTES, 3 * 4 * HIDDEN], ids=["at-once", "three-rows-at-a-time"])
def test_both_types_end_up_in_place(pipe, monkeypatch, chunk):
    monkeypatch.setattr(staging, "CHUNK_BYTES", chunk)
    first, second = rows(21, 1), rows(27, 2)
    pipe.send([(5, 0, 16), (8, 0, 5)], first)
    pipe.send([(5, 16, 14), (3, 0, 1), (8, 5, 12)], second)
    pipe.settle()
    assert pipe.writers.error is None
    check(pipe, 5, [torch.cat([a[:16], b[:14]]) for a, b in zip(first, second, strict=True)])
    check(pipe, 3, [b[14:15] for b in second])
    exact = pipe.placed.read(8)
    for name, a, b in zip(pipe.placed.states, first, second, strict=True):
        assert torch.equal(exact[name], torch.cat([a[16:], b[15:]]))
    assert pipe.writers.figures["bytes"] == 3 * (31 * (HIDDEN + 4) + 17 * HIDDEN * 2)


def test_a_block_holds_twice_as_many_rows_in_8_bits(pipe):
    assert {dtype: pipe.staging.layout.rows(dtype) for dtype in ("fp8_e4m3", "bfloat16")} == {
        "fp8_e4m3": 16,
        "bfloat16": 8,
    }


@pytest.mark.parametrize("factor", [0.0, 3e-41, 1e-38, 1.0, 1e5, 5e37], ids=str)
def test_rows_of_any_size(pipe, factor):
    states = [(state.float().clamp(-3, 3) * factor).bfloat16() for state in rows(30)]
    states[0][4:7] = 0
    pipe.send([(5, 0, 30)], states)
    pipe.settle()
    check(pipe, 5, states)


@pytest.mark.parametrize(("value", "name"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_rows_that_are_not_finite_are_named(pipe, value, name):
    states = rows(30)
    states[1][9, 3] = value
    pipe.send([(5, 0, 30)], states)
    pipe.send([(3, 0, 1)], rows(1))
    pipe.settle()
    assert {sample: row["bad"] for sample, row in pipe.placed.ledger().items()} == {5: name, 3: None}


def test_an_aborted_sequence_starts_again(pipe):
    pipe.send([(5, 0, 12)], rows(12, 1))
    states = rows(30, 2)
    pipe.send([(5, 0, 30)], states)
    pipe.settle()
    check(pipe, 5, states)


def test_the_formula_is_that_of_the_package():
    for spread in rows(50):
        state = (spread * torch.logspace(-42, 37, 50)[:, None]).bfloat16()
        state[7] = 0
        peaks = state.float().abs().amax(-1)
        for mine, theirs in zip(quantise(state, peaks), fp8.quantise(state), strict=True):
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
