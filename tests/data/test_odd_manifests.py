"""A manifest that is not as it should be is named, by the reader, by `eagle3 inspect` and by `eagle3 verify`."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.small_datasets import SHAPE, write

from eagle3.cli import main
from eagle3.data.manifest import Manifest
from eagle3.data.shards import HiddenStates
from eagle3.data.verify import verify
from eagle3.errors import DataError

LENGTHS = [5, 1, 9, 4]
ROUND = {
    "sequences": 4,
    "tokens": 19,
    "mean_error": 0.1,
    "max_ratio": 0.2,
    "tolerance_ratio": 8.0,
    "max_decode_error": 0,
}
LOST = {
    "relative_rms": {"final": 0.02},
    "max_relative_row": {"final": 0.03},
    "kl_divergence": 0.001,
    "top1_agreement": 0.99,
    "positions": 19,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    manifest = write(folder, LENGTHS, 12 * SHAPE.token_bytes / (1 << 30))
    manifest.num_layers, manifest.proof, manifest.quantisation = 6, {"start": dict(ROUND)}, dict(LOST)
    manifest.skipped, manifest.nccl_env = {"empty": 2}, {"NCCL_ALGO": "Ring"}
    manifest.save(folder)
    return folder


@pytest.fixture(scope="module")
def right(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def put(folder: Path, raw: Any) -> None:
    (folder / "manifest.json").write_text(json.dumps(raw))


def at(raw: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        raw = raw[key]
    return raw


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("tokens",), -1, "'tokens' is -1, and should be a whole number, 0 or more"),
        (("sequences",), "4", "'sequences' is '4', and should be a whole number"),
        (("bytes",), 1.5, "'bytes' is 1.5"),
        (("hidden_size",), True, "'hidden_size' is True, and should be a whole number, 1 or more"),
        (("hidden_size",), 7, "A hidden size of 7 is not a multiple of 4"),
        (("dtype",), "int4", "'dtype' is 'int4', and should be one of bfloat16"),
        (("boundaries",), [3, 3], "'boundaries' is [3, 3], and should be a list of whole numbers from 1 on, each once"),
        (("boundaries",), [0, 3], "'boundaries' is [0, 3]"),
        (("boundaries",), [1, 7], "'boundaries' are [1, 7], and the model has 6 layers"),
        (("states",), [["final"]], "'states' is [['final']], and should be a list of names"),
        (("complete",), 1, "'complete' is 1, and should be true or false"),
        (("target",), {"name": 3}, "'target' is {'name': 3}, and should be an object of texts"),
        (("placement",), {}, "'placement.sequences' is missing"),
        (("placement", "tokens"), -5, "'placement.tokens' is -5"),
        (("placement", "shard_gib"), "2", "'placement.shard_gib' is '2', and should be a number above 0"),
        (("quarantined",), {"nine": "nan"}, "should be an object of sample ids and reasons"),
        (("quarantined",), {"9" * 40: "nan"}, "should be an object of sample ids and reasons"),
        (("skipped",), {"empty": -1}, "should be an object of reasons and how many"),
        (("proof",), {"start": 1}, "should be an object of rounds and their figures"),
        (("quantisation",), {"positions": 3}, "'quantisation.relative_rms' is missing"),
        (("shards",), {}, "'shards' is {}, and should be a list"),
        (("shards", 1), 3, "'shards[1]' is 3, and should be an object"),
        (("shards", 1, "tokens"), 0, "'shards[1].tokens' is 0, and should be a whole number, 1 or more"),
        (("shards", 1, "bytes"), None, "'shards[1].bytes' is None"),
        (("shards", 1, "file"), "../shard-00001.safetensors", "should be a file's name"),
        (("shards", 1, "file"), "shard-00000.safetensors", "'shards' lists shard-00000.safetensors twice"),
        (("shards", 1, "colour"), "blue", "'shards[1]' has 'colour', which this version does not know"),
        (("format_version",), 2, "has format version 2; this version of eagle3 reads 1"),
    ],
)
def test_odd_fields_are_named(folder, right, capsys, path, value, says):
    raw = copy.deepcopy(right)
    at(raw, path)[path[-1]] = value
    put(folder, raw)
    with pytest.raises(DataError) as error:
        HiddenStates(folder)
    assert says in str(error.value)
    assert str(folder / "manifest.json") in str(error.value)
    assert main(["inspect", str(folder)]) == 1
    assert says in capsys.readouterr().err
    assert main(["verify", str(folder)]) == 1
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", [n for n in Manifest.__dataclass_fields__ if n not in ("quantisation", "format_version")]
)
def test_a_field_that_is_missing_is_named(folder, right, name):
    put(folder, {key: value for key, value in right.items() if key != name})
    with pytest.raises(DataError, match=f"'{name}' is missing"):
        Manifest.load(folder)


@pytest.mark.parametrize("text", ["", "[]", "3", '"x"', "null", "{", "[" * 100_000, '{"format_version": 1}'])
def test_a_file_that_is_none_is_named(folder, capsys, text):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json"):
        HiddenStates(folder)
    assert main(["inspect", str(folder)]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def places(raw: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and element in it."""
    inner = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    return [place for key, value in inner for place in [(*path, key), *places(value, (*path, key))]]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**30) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=4,
)


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_whatever_is_in_a_manifest_there_is_no_traceback(folder, right, data):
    raw = copy.deepcopy(right)
    path = data.draw(st.sampled_from(places(raw)))
    if data.draw(st.booleans()):
        at(raw, path)[path[-1]] = data.draw(ODD)
    else:
        del at(raw, path)[path[-1]]
    put(folder, raw)
    try:
        states = HiddenStates(folder, allow_incomplete=True)
        if len(states):
            states.read(0, ["input_ids"])
    except DataError:
        pass
    list(verify(folder))
    assert main(["inspect", str(folder)]) in (0, 1)
