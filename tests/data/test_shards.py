import json
import multiprocessing
import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tests.data.small_datasets import SHAPE, prompts_of, states_of, write

from eagle3.data import shards
from eagle3.data.layout import DATA_ALIGNMENT, DTYPES, INDEX, ShardLayout, StateShape, state_names
from eagle3.data.manifest import Manifest
from eagle3.data.placement import place
from eagle3.data.shards import TORCH, HiddenStates, read_index
from eagle3.data.skeleton import create_skeleton, finalise, skeleton_matches
from eagle3.errors import DataError

LENGTHS = [5, 1, 9, 4, 7]
TINY = 12 * SHAPE.token_bytes / (1 << 30)
"""Shards of twelve tokens."""


@given(
    boundaries=st.lists(st.integers(1, 80), min_size=1, max_size=5, unique=True),
    words=st.integers(1, 40),
    dtype=st.sampled_from(sorted(DTYPES)),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
)
@settings(max_examples=40, deadline=None)
def test_a_skeleton_is_valid_safetensors(tmp_path_factory, boundaries, words, dtype, lengths):
    hidden = 8 * words // DTYPES[dtype][1]
    shape = StateShape(tuple(state_names(boundaries)), hidden, dtype)
    placement = place(prompts_of(lengths), shape, 1.0, 100)
    (plan,) = placement.shards
    path = tmp_path_factory.mktemp("s") / "a"
    create_skeleton(path, plan.layout, placement.index(plan))
    assert skeleton_matches(path, plan.layout, placement.index(plan))
    assert len(plan.layout.header) % DATA_ALIGNMENT == 0
    with safe_open(path, "pt") as file:
        scales = {f"scale.{state}" for state in shape.states if dtype == "fp8_e4m3"}
        assert set(file.keys()) == {*shape.states, *scales, *INDEX}
        assert file.get_tensor("input_ids").tolist() == placement.prompts.input_ids.tolist()
        assert file.get_tensor("loss_mask").tolist() == placement.prompts.loss_mask.tolist()
        assert file.get_tensor("offsets").tolist() == placement.prompts.offsets.tolist()
        assert file.get_tensor("sample_ids").tolist() == placement.prompts.sample_ids.tolist()
        assert file.get_tensor("checksums").shape == (len(lengths), len(boundaries) + 1)
        for state in shape.states:
            tensor = file.get_tensor(state)
            assert (tensor.shape, tensor.dtype) == ((sum(lengths), hidden), TORCH[DTYPES[dtype][0]])
        for name in scales:
            assert (file.get_tensor(name).shape, file.get_tensor(name).dtype) == ((sum(lengths),), torch.float32)
    assert all(slot.offset % TORCH[slot.dtype].itemsize == 0 for slot in plan.layout.slots.values())


def test_a_skeleton_takes_no_space_for_its_states(tmp_path):
    layout = ShardLayout(StateShape(("boundary.1", "final"), 4096), 20000, 1)
    placement = place(prompts_of([20000]), layout.shape, 1.0, 20000)
    create_skeleton(tmp_path / "a", layout, placement.index(placement.shards[0]))
    status = (tmp_path / "a").stat()
    assert status.st_size > 300e6
    assert status.st_blocks * 512 < 1e6


def test_what_was_written_is_read(tmp_path):
    manifest = write(tmp_path, LENGTHS, TINY)
    assert [(s.sequences, s.tokens) for s in manifest.shards] == [(2, 6), (1, 9), (2, 11)]
    data = HiddenStates(tmp_path)
    assert data.sample_ids.tolist() == [100, 103, 106, 109, 112]
    assert data.lengths.tolist() == LENGTHS
    prompts = prompts_of(LENGTHS)
    for i, length in enumerate(LENGTHS):
        got = data.read(i, ["input_ids", "loss_mask", *SHAPE.states])
        span = slice(int(prompts.offsets[i]), int(prompts.offsets[i + 1]))
        assert got["input_ids"].tolist() == prompts.input_ids[span].tolist()
        assert got["loss_mask"].tolist() == prompts.loss_mask[span].tolist()
        for state, expected in states_of(length, i).items():
            assert torch.equal(got[state], expected)


def test_another_reader_agrees(tmp_path):
    manifest = write(tmp_path, LENGTHS)
    with safe_open(tmp_path / manifest.shards[0].file, "pt") as file:
        final = file.get_tensor("final")
    assert torch.equal(final, torch.cat([states_of(n, i)["final"] for i, n in enumerate(LENGTHS)]))


def test_reading_copies_nothing_and_does_not_write_back(tmp_path):
    write(tmp_path, LENGTHS)
    data = HiddenStates(tmp_path)
    one, two = data.read(2, ["final"])["final"], data.read(2, ["final"])["final"]
    assert one.data_ptr() == two.data_ptr()
    one.zero_()
    assert torch.equal(HiddenStates(tmp_path).read(2, ["final"])["final"], states_of(9, 2)["final"])


def test_views_outlive_the_dataset(tmp_path):
    write(tmp_path, LENGTHS)
    view = HiddenStates(tmp_path).read(4, ["final"])["final"]
    assert torch.equal(view, states_of(7, 4)["final"])


def test_threads_forks_and_pickles_read_the_same(tmp_path):
    write(tmp_path, LENGTHS, TINY)
    data = HiddenStates(tmp_path)
    expected = [states_of(n, i)["final"] for i, n in enumerate(LENGTHS)]
    wrong: list[int] = []

    def check() -> None:
        wrong.extend(i for i in range(5) if not torch.equal(data.read(i, ["final"])["final"], expected[i]))

    threads = [threading.Thread(target=check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.read(3, ["final"])["final"], expected[3])
    child = multiprocessing.get_context("fork").Process(target=check_in_child, args=(data, expected))
    child.start()
    child.join()
    assert child.exitcode == 0


def check_in_child(data: HiddenStates, expected: list[torch.Tensor]) -> None:
    # Element by element: a forked child must not enter torch's thread pool.
    assert [data.read(i, ["final"])["final"][0, 0].item() for i in range(5)] == [e[0, 0].item() for e in expected]


def test_quarantined_sequences_are_left_out(tmp_path):
    manifest = write(tmp_path, LENGTHS, TINY)
    manifest.quarantined = {"103": "nan", "109": "nan"}
    manifest.save(tmp_path)
    data = HiddenStates(tmp_path)
    assert data.sample_ids.tolist() == [100, 106, 112]
    assert data.lengths.tolist() == [5, 9, 7]
    assert torch.equal(data.read(2, ["final"])["final"], states_of(7, 4)["final"])


def test_a_hundred_thousand_sequences_open_without_reading_states(tmp_path):
    n = 100_000
    shape = StateShape(tuple(state_names([2])), 512)
    placement = place(prompts_of([3] * n), shape, 0.1, 10)
    manifest = Manifest([*shape.states], [2], shape.dtype, 512, 0, 0, {}, "", placement.summary(), complete=True)
    for plan in placement.shards:
        path = tmp_path / (plan.file + ".partial")
        create_skeleton(path, plan.layout, placement.index(plan))
        manifest.add(finalise(path, plan.layout, np.zeros((plan.layout.sequences, 2), np.int64)))
    manifest.save(tmp_path)
    start = time.perf_counter()
    data = HiddenStates(tmp_path)
    print(f"opened in {time.perf_counter() - start:.3f} s, {len(manifest.shards)} shards")
    assert len(data) == n
    assert data.read(n - 1, ["input_ids"])["input_ids"].shape == (3,)


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda f: (f / "shard-00001.safetensors").unlink(), "shard-00001.safetensors is in the manifest, but is not"),
        (lambda f: truncate(f / "shard-00001.safetensors"), "shard-00001.safetensors has 3,621 bytes where"),
        (lambda f: overwrite(f / "shard-00001.safetensors", 20), "another header"),
        (lambda f: (f / "manifest.json").unlink(), "has no manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{"), "can't be read"),
        (lambda f: edit(f, format_version=2), "format version 2"),
        (lambda f: edit(f, complete=False), "is not complete: finished shards hold 5 of 5"),
        (lambda f: edit(f, tokens="many"), "'tokens' is 'many', and should be a whole number"),
        (lambda f: edit(f, shards=[{"file": "x"}]), r"'shards\[0\]\.sequences' is missing"),
    ],
)
def test_a_damaged_dataset_is_named(tmp_path, harm, expected):
    write(tmp_path, LENGTHS, TINY)
    harm(tmp_path)
    with pytest.raises(DataError, match=expected):
        HiddenStates(tmp_path)


def test_a_state_that_is_not_there_is_named(tmp_path):
    write(tmp_path, LENGTHS)
    with pytest.raises(DataError, match=r"no state 'boundary\.2'; it has boundary\.1, boundary\.3, final"):
        HiddenStates(tmp_path).read(0, ["boundary.2"])


def test_damage_is_looked_for_with_one_look_at_a_shards_index(tmp_path, monkeypatch):
    write(tmp_path, LENGTHS, TINY)
    states = HiddenStates(tmp_path)
    looks: list[Path] = []
    monkeypatch.setattr(shards, "read_index", lambda path, layout: looks.append(path) or read_index(path, layout))
    assert not any(states.damaged(i) for i in range(len(states)))
    assert len(looks) == len(states.manifest.shards) > 1
    with (tmp_path / states.manifest.shards[1].file).open("r+b") as file:
        file.seek(states.layouts[1].rows("final", 0, 1)[0])
        file.write(b"\x7f\x01")
    assert [states.damaged(i) for i in range(len(states))].count(True) == 1


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)


def overwrite(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"X")


def edit(folder: Path, **values: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
