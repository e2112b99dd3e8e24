"""A value of the wrong type in config.json is named by its field, whoever reads the folder; nothing else is raised."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.drafter.foreign import as_others, make_ours, rewrite
from tests.drafter.targets import make_target

from eagle3.config.schema import RopeScaling
from eagle3.drafter.check import check_drafter
from eagle3.drafter.load import load_drafter
from eagle3.drafter.speculators import export_speculators
from eagle3.errors import Eagle3Error
from eagle3.target.info import TargetInfo

VERSION = "0.5.23"
WRONG: tuple[Any, ...] = (
    float("nan"),
    "7",
    -1,
    0,
    1.5,
    10**30,
    [],
    [[1]],
    [None],
    ["1", "3"],
    {},
    {"a": 1},
    None,
    True,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetInfo:
    return make_target(tmp_path_factory.mktemp("fields") / "target")


def made(folder: Path, target: TargetInfo, kind: str) -> Path:
    drafter = make_ours(folder, target, rope_scaling=RopeScaling("llama3", 8.0, 16))
    if kind == "others":
        as_others(folder)
    if kind == "speculators":
        export_speculators(drafter, torch.arange(48), [2, 4, 5], target, folder, str(target.path))
    return folder


def paths(config: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in config.items():
        if (*above, key) == ("eagle3", "config"):  # compared, never computed with
            continue
        found.append((*above, key))
        if isinstance(value, dict):
            found += paths(value, (*above, key))
    return found


@pytest.mark.parametrize("kind", ["ours", "others", "speculators"])
def test_any_value_anywhere_is_named_or_let_pass(tmp_path: Path, target: TargetInfo, kind: str) -> None:
    """Every field with every wrong value: what is not refused can be checked and loaded, or is refused by its name."""
    folder = made(tmp_path / "d", target, kind)
    file = folder / "config.json"
    right = json.loads(file.read_text())
    version = None if right.get("eagle3") else VERSION
    for path in paths(right):
        for value in WRONG:
            config = json.loads(json.dumps(right))
            holder = config
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
            file.write_text(json.dumps(config))
            problems = check_drafter(folder, target, sglang_version=version)
            assert all(isinstance(problem, str) for problem in problems)
            if problems:
                continue
            try:
                load_drafter(folder, target, version or VERSION)
            except Eagle3Error as error:
                pytest.fail(f"{'.'.join(path)} = {value!r} passes the check, and then: {error}")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hidden_size": "576"}, "config.json: hidden_size is '576', expected a whole number from 1"),
        ({"hidden_size": float("nan")}, "config.json: hidden_size is nan, expected a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected a whole number from 1 to 1,000"),
        ({"num_hidden_layers": 900}, "num_hidden_layers is 900, but there are 14 tensors in all"),
        ({"norm_output": "no"}, "config.json: norm_output is 'no', expected true or false"),
        ({"rms_norm_eps": None}, "config.json: rms_norm_eps is None, expected a number above 0"),
        (
            {"rope_scaling": {"rope_type": "bogus"}},
            "rope_scaling.rope_type is 'bogus', expected one of default, linear",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "original_max_position_embeddings is missing"),
        ({"rope_scaling": {"rope_type": "yarn", "attn_factor": 2}}, "rope_scaling.attn_factor is 2, expected 1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3: does not divide num_attention_heads=4"),
        ({"architectures": "LlamaForCausalLMEagle3"}, "architectures is 'LlamaForCausalLMEagle3', expected a list"),
        ({"eagle3": "0.1.0"}, "config.json: eagle3 is '0.1.0', expected an object"),
        ({"eagle3": {"boundaries": [2, 4, 5], "target": 7}}, "config.json: eagle3.target is 7, expected an object"),
        ({"eagle3": {}, "eagle_config": [1, 2]}, "config.json: eagle_config is [1, 2], expected an object"),
        *(
            (
                {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}},
                f"eagle_config.eagle_aux_hidden_state_layer_ids is {ids!r}, expected a list of whole numbers",
            )
            for ids in ("1,14,26", ["1", "3", "4"], [[1, 3, 4]], [1.0, 3.0, 4.0], [])
        ),
    ],
)
def test_the_field_is_named(tmp_path: Path, target: TargetInfo, change: dict[str, Any], problem: str) -> None:
    folder = made(tmp_path / "d", target, "others")
    rewrite(folder, lambda c: c.update(change))
    found = check_drafter(folder, target, sglang_version=VERSION)
    assert any(problem in fault for fault in found), found
    with pytest.raises(Eagle3Error):
        load_drafter(folder, target, VERSION)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "not JSON"), ("[]", "a list, expected an object"), ("\x00\x01", "not JSON"), ("[" * 100_000, "not JSON")],
)
def test_no_config_at_all(tmp_path: Path, target: TargetInfo, text: str, problem: str) -> None:
    folder = made(tmp_path / "d", target, "ours")
    (folder / "config.json").write_text(text)
    (found,) = check_drafter(folder, target)
    assert found.startswith("config.json: ")
    assert problem in found
    (folder / "config.json").unlink()
    assert check_drafter(folder, target) == ["config.json: is missing"]
    (folder / "config.json").mkdir()
    assert check_drafter(folder, target) == ["config.json: can't be read (Is a directory)"]


def test_a_run_in_the_place_of_its_drafter(tmp_path: Path, target: TargetInfo) -> None:
    inner = made(tmp_path / "run" / "drafter", target, "ours")
    said = [f"config.json: is missing; the drafter there is {inner}: give that"]
    assert check_drafter(tmp_path / "run", target) == said
