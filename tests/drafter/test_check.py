"""`eagle3 verify` on drafters of others: each usual fault is made and named; what only looks odd is let pass."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.drafter.foreign import BOUNDARIES, DRAFT_IDS, as_others, make_ours, make_theirs, rewrite
from tests.drafter.targets import make_target
from torch import Tensor

from eagle3.drafter.check import check_drafter
from eagle3.drafter.check_tensors import vocabulary_problems
from eagle3.drafter.folder import read_drafter
from eagle3.drafter.load import load_drafter
from eagle3.drafter.notes import notes_on
from eagle3.errors import Eagle3Error
from eagle3.evaluation.open import checked
from eagle3.target.info import TargetInfo
from eagle3.target.weights import load_embedding

VERSION = "0.5.23"
IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture
def target(tmp_path: Path) -> TargetInfo:
    return make_target(tmp_path / "target")


@pytest.fixture
def folder(tmp_path: Path, target: TargetInfo) -> Path:
    return make_theirs(tmp_path / "theirs", target)


def faults(folder: Path, target: TargetInfo, trained_on: list[int] | None = None) -> list[str]:
    return check_drafter(folder, target, trained_on, VERSION)


def test_others_drafters_pass(folder: Path, target: TargetInfo) -> None:
    assert faults(folder, target) == []
    rewrite(folder, lambda c: c.pop("eagle_config"))
    assert faults(folder, target) == [], "no ids: the default boundaries are meant"
    assert faults(folder, target, BOUNDARIES) == []
    assert "would capture its default boundaries [2, 4, 5]" in faults(folder, target, [3, 4, 5])[0]


def renamed(stored: dict[str, Tensor], old: str, new: str) -> None:
    for name in [name for name in stored if name.startswith(old)]:
        stored[new + name.removeprefix(old)] = stored.pop(name)


def test_other_names_are_known(folder: Path, target: TargetInfo) -> None:
    rewrite(folder, tensors=lambda s: renamed(s, "midlayer.", "layers.0."))
    assert faults(folder, target) == []


def test_names_as_in_a_whole_model(folder: Path, target: TargetInfo) -> None:
    """SGLang finds what is below `model.` with it and without, and the draft vocabulary by any name that has d2t in it;
    the head is not below it."""
    plain = load_drafter(folder, target, VERSION)

    def prefixed(stored: dict[str, Tensor]) -> None:
        renamed(stored, "", "model.")
        renamed(stored, "model.lm_head.", "lm_head.")

    rewrite(folder, tensors=prefixed)
    assert faults(folder, target) == []
    (note,) = notes_on(read_drafter(folder), target)
    assert note == "model.safetensors: 13 names with `model.` in front: SGLang finds them so too"
    found = load_drafter(folder, target, VERSION)
    assert found.draft_ids.tolist() == plain.draft_ids.tolist()
    for name, tensor in plain.drafter.state_dict().items():
        assert torch.equal(found.drafter.state_dict()[name], tensor), name


def test_a_width_that_the_weights_do_not_have_is_said_first(folder: Path, target: TargetInfo) -> None:
    """Of what follows from it, an embedding that is missing is one."""
    rewrite(folder, lambda c: c.update(hidden_size=96, target_hidden_size=64))
    found = faults(folder, target)
    assert found[0] == "config.json: hidden_size is 96, but the weights are 64 wide"
    assert "embed_tokens.weight is missing" in " ".join(found[1:])
    make_ours(folder, target)
    rewrite(folder, lambda c: c.update(hidden_size=96))
    found = faults(folder, target)
    assert found[0] == "config.json: hidden_size is 96, but the weights are 64 wide"
    assert len([fault for fault in found if "hidden_size is" in fault]) == 1


def test_others_of_several_layers(folder: Path, target: TargetInfo) -> None:
    """The norm that SGLang makes in every layer, and uses in the first, may be there or not."""
    made = make_ours(folder, target, num_layers=3)
    as_others(folder)
    assert faults(folder, target) == []
    unused = ["layers.1.input_layernorm.weight", "layers.2.input_layernorm.weight"]
    rewrite(folder, tensors=lambda s: [s.pop(name) for name in unused])
    assert faults(folder, target) == []
    loaded = load_drafter(folder, target, VERSION).drafter.state_dict()
    assert loaded.keys() == made.state_dict().keys()
    rewrite(folder, lambda c: c.update(num_hidden_layers=1))
    assert "layers.1.hidden_norm.weight is unknown; SGLang would skip it" in " ".join(faults(folder, target))


def at_top_level(config: dict[str, Any]) -> None:
    config[IDS] = config.pop("eagle_config")[IDS]


def with_ids(ids: list[int]) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["eagle_config"].update({IDS: ids})


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (at_top_level, "is at the top level of config.json, where SGLang does not look"),
        (with_ids([2, 4, 5]), "These ids are the default boundaries, so they are probably one off"),
        (with_ids([1, 3, 8]), r"boundaries [2, 4, 9], of which [9] do not exist"),
        (lambda c: c.update(vocab_size=127), "vocab_size is 127, expected 128 (the target's)"),
        (lambda c: c.update(target_hidden_size=32), "target_hidden_size is 32, expected 64 (the target's)"),
        (lambda c: c.update(draft_vocab_size=256), "draft_vocab_size=256: more than the target's vocabulary of 128"),
        (lambda c: c.update(hidden_size="64"), "hidden_size is '64', expected a whole number"),
        (lambda c: c.update(fc_norm=True), "fc_norm.0.weight is missing"),
        (lambda c: c.update(norm_before_fc=True), "there is no input_norm.weight"),
        (lambda c: c.update(num_hidden_layers=2), "layers.1.mlp.up_proj.weight is missing"),
        (lambda c: c.update(num_hidden_layers=0), "num_hidden_layers is 0, expected a whole number"),
        (lambda c: c.pop("num_hidden_layers"), "config.json: num_hidden_layers is missing"),
    ],
)
def test_faults_of_config(
    folder: Path, target: TargetInfo, config: Callable[[dict[str, Any]], object], problem: str
) -> None:
    rewrite(folder, config)
    assert any(problem in found for found in faults(folder, target)), faults(folder, target)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        (
            lambda s: renamed(s, "", "model."),
            "model.lm_head.weight would be skipped: SGLang knows it as lm_head.weight",
        ),
        (lambda s: s.update(d2t=DRAFT_IDS.clone()), "d2t holds target ids"),
        (lambda s: s.update(d2t=s["d2t"] + 100), "the target's vocabulary has 128"),
        (lambda s: s.update(d2t=s["d2t"] - 11), "d2t leads to token -1; the target's vocabulary has 128, from 0"),
        (lambda s: s.update(d2t=torch.full((48,), 2**62)), "d2t leads to token 4611686018427387904"),
        (lambda s: s.update(d2t=s["d2t"].flip(0)), "d2t is not ascending"),
        (lambda s: s.update(d2t=s["d2t"].float()), "d2t is torch.float32, expected torch.int64"),
        (lambda s: s.update(t2d=torch.ones(126, dtype=torch.bool)), "t2d is [126], expected [128]"),
        (lambda s: s["norm.weight"].fill_(float("nan")), "norm.weight has NaN or infinite values"),
        (lambda s: s.pop("midlayer.hidden_norm.weight"), "midlayer.hidden_norm.weight is missing"),
        (lambda s: s.pop("d2t"), "d2t is missing"),
        (lambda s: s.update({"fc_norm.0.weight": torch.ones(64)}), "fc_norm is off, but fc_norm.* has weights"),
        (lambda s: s.update({"lm_head.weight": torch.ones(128, 64)}), "lm_head.weight is [128, 64], expected [48, 64]"),
    ],
)
def test_faults_of_tensors(
    folder: Path, target: TargetInfo, tensors: Callable[[dict[str, Tensor]], object], problem: str
) -> None:
    rewrite(folder, tensors=tensors)
    assert any(problem in found for found in faults(folder, target)), faults(folder, target)


def as_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def as_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def cut_short(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 5000)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (as_pickle, "its weights are in pytorch_model.bin: pickled ones can run code and are not read here"),
        (as_pointer, "a Git LFS pointer in its place: `git lfs pull`"),
        (cut_short, "truncated or damaged"),
    ],
)
def test_what_is_no_weights_says_the_way_out_once(
    folder: Path, target: TargetInfo, damage: Callable[[Path], None], problem: str
) -> None:
    damage(folder)
    (found,) = faults(folder, target)
    assert problem in found
    with pytest.raises(Eagle3Error) as raised:
        checked(folder, target, None)
    told = str(raised.value)
    assert problem in told
    assert told.lower().count("fetch") == 1, told


def test_what_is_no_drafter(tmp_path: Path, folder: Path, target: TargetInfo) -> None:
    """People give the target, a file in the folder, or a folder that was moved."""
    assert faults(target.path, target) == ["it is a model that answers by itself (LlamaForCausalLM), and no drafter"]
    assert faults(folder / "config.json", target) == ["a file: give the folder that holds it"]
    assert faults(tmp_path / "gone", target) == ["there is no such folder"]
    assert faults(tmp_path, target) == ["config.json: is missing"]


def test_boundaries_that_are_said_must_be_there(folder: Path, target: TargetInfo) -> None:
    assert faults(folder, target, [2, 4, 9]) == [
        "the boundaries [2, 4, 9], of which [9] do not exist: there are 1 to 7"
    ]
    (problem,) = faults(folder, target, [5, 4, 2])
    assert "out of order" in problem


def test_an_embedding_that_sglang_does_not_take(folder: Path, target: TargetInfo) -> None:
    own = load_embedding(target).float()
    rewrite(folder, tensors=lambda s: s.update({"embed_tokens.weight": own.clone()}))
    assert list(notes_on(read_drafter(folder), target)) == []
    rewrite(folder, tensors=lambda s: s["embed_tokens.weight"].add_(1.0))
    (note,) = notes_on(read_drafter(folder), target)
    assert "not the target's embedding: SGLang takes the target's in its place" in note
    assert faults(folder, target) == []


def test_one_off_is_known_where_the_training_is(folder: Path, target: TargetInfo) -> None:
    (problem,) = faults(folder, target, [3, 5, 6])
    assert "as boundaries [2, 4, 5], but the drafter was trained on [3, 5, 6]: off by -1" in problem
    rewrite(folder, with_ids([2, 4, 5]))
    assert faults(folder, target, [3, 5, 6]) == [], "and where it was meant so, it is no fault"


def test_a_run_says_what_it_was_trained_on(folder: Path, target: TargetInfo) -> None:
    """`layers.boundaries`: ids that look one off are meant so where it names what they are read as."""
    rewrite(folder, with_ids([2, 4, 5]))
    for named in (None, [2, 4, 5]):
        with pytest.raises(Eagle3Error, match=r"--boundaries 3,5,6, or in run.py layers.boundaries=\[3,5,6\]"):
            checked(folder, target, None, named)
    assert checked(folder, target, None, [3, 5, 6]).boundaries == [3, 5, 6]
    rewrite(folder, with_ids([1, 3, 4]))
    assert checked(folder, target, None, [3, 5, 6]).boundaries == BOUNDARIES, "the choice may be another drafter's"


def test_a_switch_of_ours_that_was_changed(tmp_path: Path, target: TargetInfo) -> None:
    """Nothing in the weights tells whether the carried state is normed."""
    make_ours(tmp_path / "ours", target)
    rewrite(tmp_path / "ours", lambda c: c.update(norm_output=True))
    assert check_drafter(tmp_path / "ours", target) == [
        "config.json: norm_output is True, but it was exported with False"
    ]


def test_the_version_decides_what_ids_mean(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", "DeepseekV3ForCausalLM")
    make_ours(tmp_path / "d", target, [3, 4, 6])
    assert check_drafter(tmp_path / "d", target) == []
    (problem,) = check_drafter(tmp_path / "d", target, None, "0.5.12")
    assert "SGLang 0.5.12 reads the capture ids [3, 4, 6] as boundaries [4, 5, 7]" in problem
    assert "off by +1" in problem


def test_others_are_loaded(folder: Path, target: TargetInfo) -> None:
    rewrite(folder, tensors=lambda s: renamed(s, "midlayer.", "layers.0."))
    loaded = load_drafter(folder, target, VERSION)
    assert loaded.boundaries == BOUNDARIES
    assert loaded.draft_ids.tolist() == DRAFT_IDS.tolist()
    assert load_drafter(folder, target, VERSION, [3, 5, 6]).boundaries == [3, 5, 6]
    rewrite(folder, lambda c: c.update(norm_before_residual=True))
    with pytest.raises(Eagle3Error, match="norm_before_residual"):
        load_drafter(folder, target, VERSION)


def test_the_whole_vocabulary_needs_no_map() -> None:
    assert vocabulary_problems(torch.zeros(8, dtype=torch.int64), None, 8) == []
