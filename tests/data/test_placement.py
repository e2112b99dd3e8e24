import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tests.data.small_datasets import SHAPE, prompts_of

from eagle3.data.placement import Placement, Prompts, place, write_placement
from eagle3.data.space import dataset_bytes, require_space
from eagle3.errors import ConfigError, DataError
from eagle3.files.disk import GIB, used_bytes


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(1, 80), st.integers(1, 50))
@settings(deadline=None)
def test_every_prompt_is_placed_once_or_counted(lengths, room, context):
    prompts = prompts_of(lengths)
    shard_gib = (room * SHAPE.token_bytes + 1) / GIB
    usable = [i for i, n in enumerate(lengths) if 0 < n <= context]
    if not usable:
        with pytest.raises(DataError, match="No prompt can be extracted"):
            place(prompts, SHAPE, shard_gib, context)
        return
    placement = place(prompts, SHAPE, shard_gib, context)
    assert placement.source.tolist() == usable
    assert sum(placement.skipped.values()) == len(lengths) - len(usable)
    assert [i for plan in placement.shards for i in plan.sequences] == list(range(len(usable)))
    for number, plan in enumerate(placement.shards):
        index = placement.index(plan)
        own = list(plan.sequences)
        assert index.offsets[:-1].tolist() == placement.row[own].tolist()
        assert plan.layout.tokens == index.offsets[-1] == len(index.input_ids) == len(index.loss_mask)
        assert plan.layout.tokens <= room or len(own) == 1
        assert set(placement.shard[own].tolist()) == {number}
        assert index.input_ids.tolist() == [t for i in own for t in placement.input_ids(i).tolist()]
    same = place(prompts, SHAPE, shard_gib, context)
    assert same.summary() == placement.summary()


def two_shards() -> Placement:
    return place(prompts_of([5, 6, 7]), SHAPE, 12 * SHAPE.token_bytes / GIB, 100)


def test_the_plugin_gets_every_place(tmp_path):
    placement, extra = two_shards(), place(prompts_of([4], first_id=7), replace(SHAPE, dtype="fp8_e4m3"), 1.0, 100)
    write_placement(tmp_path, [placement, extra], "abc")
    head = json.loads((tmp_path / "placement.json").read_text())
    table = load_file(tmp_path / "placement.safetensors")
    assert (head["nonce"], head["hidden_size"]) == ("abc", 8)
    assert [shard["dtype"] for shard in head["shards"]] == ["bfloat16", "bfloat16", "fp8_e4m3"]
    assert [list(shard["scale_offsets"]) for shard in head["shards"]] == [[], [], list(SHAPE.states)]
    assert head["states"] == ["boundary.1", "boundary.3", "final"]
    assert [shard["tokens"] for shard in head["shards"]] == [11, 7, 4]
    assert head["shards"][1]["state_offsets"] == placement.shards[1].layout.state_offsets
    assert table["sample_ids"].tolist() == [100, 103, 106, 7]
    assert table["shard"].tolist() == [0, 0, 1, 2]
    assert table["row"].tolist() == [0, 5, 0, 0]
    assert table["length"].tolist() == [5, 6, 7, 4]


def save(path, prompts: Prompts, **changes):
    save_file({**vars(prompts), "held_out": np.zeros(len(prompts.sample_ids), np.uint8), **changes}, path)


def test_prompts_are_loaded_from_their_folder(tmp_path):
    prompts = prompts_of([3, 4])
    save(tmp_path / "prompts.safetensors", prompts)
    loaded = Prompts.load(tmp_path)
    assert loaded.fingerprint() == Prompts.load(tmp_path / "prompts.safetensors").fingerprint() == prompts.fingerprint()
    assert loaded.lengths.tolist() == [3, 4]
    assert prompts_of([3, 4], first_id=1).fingerprint() != prompts.fingerprint()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sample_ids": np.array([5, 5])}, "sample id 5 is negative or there twice"),
        ({"sample_ids": np.array([5, -1])}, "sample id -1 is negative"),
        ({"offsets": np.array([0, 3, 8])}, "lengths don't fit"),
        ({"offsets": np.array([0, 9, 7])}, "offsets don't rise"),
        ({"loss_mask": np.zeros(3, np.uint8)}, "lengths don't fit"),
    ],
)
def test_inconsistent_prompts_are_refused(tmp_path, changes, expected):
    save(tmp_path / "prompts.safetensors", prompts_of([3, 4]), **changes)
    with pytest.raises(DataError, match=expected):
        Prompts.load(tmp_path)


def test_missing_and_broken_prompts_are_named(tmp_path):
    with pytest.raises(DataError, match="Run the prepare stage"):
        Prompts.load(tmp_path / "prompts.safetensors")
    (tmp_path / "prompts.safetensors").write_bytes(b"no")
    with pytest.raises(DataError, match="can't be read"):
        Prompts.load(tmp_path)


def test_kimi_needs_924_gib():
    assert round(dataset_bytes(17_300_000, 7168, 4) / GIB) == 924


def test_too_little_space_is_refused_with_both_figures(tmp_path):
    require_space(1000, tmp_path / "not" / "yet")
    with pytest.raises(ConfigError, match=r"needs 1,048,576 GiB, and [\d.,]+ GiB are free .*paths\.artifacts"):
        require_space(1 << 50, tmp_path / "not" / "yet")


def test_what_is_there_already_counts(tmp_path):
    (tmp_path / "shard").write_bytes(b"x" * 100_000)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert 100_000 <= used_bytes(tmp_path) < 1_000_000
