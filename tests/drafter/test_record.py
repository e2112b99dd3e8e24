"""Our exports say what they were: any other setting, any other byte is found. Of others, what contradicts."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.drafter.foreign import DRAFT_IDS, make_ours, make_theirs, rewrite
from tests.drafter.targets import make_target

from eagle3.drafter.check import another_target, check_drafter
from eagle3.drafter.folder import read_drafter
from eagle3.drafter.load import load_drafter
from eagle3.drafter.notes import notes_on
from eagle3.drafter.speculators import export_speculators
from eagle3.target.info import TargetInfo

VERSION = "0.5.23"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def target(tmp_path: Path) -> TargetInfo:
    return make_target(tmp_path / "target")


@pytest.fixture
def ours(tmp_path: Path, target: TargetInfo) -> Path:
    make_ours(tmp_path / "ours", target)
    return tmp_path / "ours"


@pytest.fixture
def theirs(tmp_path: Path, target: TargetInfo) -> Path:
    return make_theirs(tmp_path / "theirs", target)


def speculators(folder: Path, target: TargetInfo, ours: bool) -> Path:
    drafter = make_ours(folder, target)
    export_speculators(drafter, DRAFT_IDS, [2, 4, 5], target, folder, str(target.path))
    if not ours:
        rewrite(folder, lambda c: c.pop("eagle3"))
    return folder


SETTINGS: list[tuple[Change, str]] = [
    (lambda c: c["eagle_config"].update(use_aux_hidden_state=False), "use_aux_hidden_state is False"),
    (lambda c: c.update(norm_before_residual=True), "norm_before_residual is True"),
    (lambda c: c.update(rms_norm_eps=1e-2), "rms_norm_eps is 0.01, but it was exported with 1e-05"),
    (lambda c: c.update(rope_theta=500.0), "rope_theta is 500.0, but it was exported with 10000.0"),
    (
        lambda c: c.update(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
        "rope_scaling is {'rope_type': 'yarn'",
    ),
    (lambda c: c.update(max_position_embeddings=64), "max_position_embeddings is 64, but it was exported with 256"),
    (lambda c: c.update(num_attention_heads=8, num_key_value_heads=4, head_dim=8), "num_attention_heads is 8, but"),
    (lambda c: c.update(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5"),
    (lambda c: c.update(quantization_config={"bits": 4}), "quantization_config is {'bits': 4}"),
    (lambda c: c.update(text_config={"hidden_size": 8}), "text_config is {'hidden_size': 8}"),
    (lambda c: c.update(final_logit_softcapping=1), "final_logit_softcapping is 1"),
    (lambda c: c.update(sliding_window=128), "sliding_window is 128, but it was exported without"),
    (lambda c: c.update(dtype="float16"), "dtype is 'float16', but it was exported without"),
    (lambda c: c.update(auto_map={"AutoConfig": "mine.Config"}), "auto_map is {'AutoConfig': 'mine.Config'}, but"),
    (lambda c: c["eagle_config"].update(norm_before_fc=True), "norm_before_fc is True, but it was exported without"),
    (lambda c: c.pop("num_aux_hidden_states"), "num_aux_hidden_states is gone, but it was exported with 3"),
]


@pytest.mark.parametrize(("change", "problem"), SETTINGS)
def test_a_setting_of_ours(ours: Path, target: TargetInfo, change: Change, problem: str) -> None:
    assert check_drafter(ours, target) == []
    rewrite(ours, change)
    found = check_drafter(ours, target)
    assert any(problem in fault for fault in found), found


def test_what_no_server_reads_may_be_added(ours: Path, target: TargetInfo) -> None:
    """It is told all the same: somebody may have meant something by it."""
    assert list(notes_on(read_drafter(ours), target)) == []
    rewrite(ours, lambda c: c.update(license="apache-2.0", use_sliding_windows=4, dtype="bfloat16", text_config=None))
    rewrite(ours, lambda c: c["eagle_config"].update(layer_ids=[3, 4, 5]))
    assert check_drafter(ours, target) == []
    (note,) = notes_on(read_drafter(ours), target)
    assert note == (
        "config.json: eagle_config.layer_ids, license, use_sliding_windows, dtype, text_config came after the export; "
        "SGLang ignores what it does not know"
    )


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quant_model_description.json"])
def test_a_file_by_which_weights_are_read_otherwise(ours: Path, theirs: Path, target: TargetInfo, name: str) -> None:
    for folder in (ours, theirs):
        (folder / name).write_text('{"quantization": {"quant_algo": "FP8"}}')
        (problem,) = check_drafter(folder, target, sglang_version=VERSION)
        assert problem.startswith(f"{name}: is there, so that SGLang would take the weights for quantised ones")


@pytest.mark.parametrize("form", ["sglang", "speculators"])
def test_a_byte_of_ours(tmp_path: Path, ours: Path, target: TargetInfo, form: str) -> None:
    folder = ours if form == "sglang" else speculators(tmp_path / "s", target, ours=True)
    assert check_drafter(folder, target) == []
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-300, os.SEEK_END)
        byte = file.read(1)
        file.seek(-300, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    (problem,) = check_drafter(folder, target)
    assert "its bytes are not those that were exported" in problem


def test_zeroed_weights(tmp_path: Path, theirs: Path, target: TargetInfo) -> None:
    rewrite(theirs, tensors=lambda s: s["fc.weight"].zero_())
    assert check_drafter(theirs, target, sglang_version=VERSION) == ["model.safetensors: fc.weight is all zeros"]
    folder = speculators(tmp_path / "s", target, ours=False)
    rewrite(folder, tensors=lambda s: s["embed_tokens.weight"].zero_())
    assert check_drafter(folder, target) == ["model.safetensors: embed_tokens.weight is all zeros"]


@pytest.mark.parametrize("name", ["fc.weight", "model.fc.weight"])
def test_a_tensor_in_two_files(ours: Path, theirs: Path, target: TargetInfo, name: str) -> None:
    for folder in (ours, theirs):
        save_file({name: torch.ones(64, 192)}, folder / "model-00002.safetensors")
        (problem,) = check_drafter(folder, target, sglang_version=VERSION)
        assert problem.startswith("model.safetensors: fc.weight is a second fc.weight: model-00002.safetensors has")


OTHERS: list[tuple[Change, str]] = [
    (lambda c: c["eagle_config"].update(use_aux_hidden_state=False), "would hand over its last hidden state"),
    (lambda c: c.update(norm_before_residual=True), "norm_before_residual is True: it was trained to carry"),
    (lambda c: c["eagle_config"].update(norm_before_fc=True), "there is no input_norm.weight"),
    (lambda c: c.update(bias=True), "bias is True: SGLang would give fc a bias too"),
    (lambda c: c.update(rope_is_neox_style=False), "rope_is_neox_style is False: such a drafter is not known"),
    (lambda c: c.update(attention_bias=True), "midlayer.self_attn.o_proj.bias is missing"),
]


@pytest.mark.parametrize(("change", "problem"), OTHERS)
def test_contradictions_of_others(theirs: Path, target: TargetInfo, change: Change, problem: str) -> None:
    rewrite(theirs, change)
    found = check_drafter(theirs, target, sglang_version=VERSION)
    assert any(problem in fault for fault in found), found


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([1, 3], "as boundaries [2, 4], which are 2, but the drafter reads 3"),
        ([1, 1, 4], "which name one twice or are out of order"),
        ([4, 3, 1], "which name one twice or are out of order"),
        ([-1, 3, 4], "as boundaries [0, 4, 5], of which [0] do not exist: there are 1 to 7"),
        ([1, 3, 7], "as boundaries [2, 4, 8], of which [8] do not exist"),
    ],
)
def test_capture_ids_of_others(theirs: Path, target: TargetInfo, ids: list[int], problem: str) -> None:
    def change(config: dict[str, Any]) -> None:
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
        config["num_aux_hidden_states"] = 3

    rewrite(theirs, change)
    found = check_drafter(theirs, target, sglang_version=VERSION)
    assert any(problem in fault for fault in found), found


SPECULATORS: list[tuple[Change, str]] = [
    (
        lambda c: c["speculators_config"]["verifier"].update(architectures=["Qwen"]),
        "architectures is ['Qwen'], expected",
    ),
    (lambda c: c["speculators_config"].update(algorithm="dflash"), "algorithm is 'dflash', expected 'eagle3'"),
    (lambda c: c.update(speculators_model_type="dflash"), "speculators_model_type is 'dflash', expected 'eagle3'"),
]


@pytest.mark.parametrize(("change", "problem"), SPECULATORS)
@pytest.mark.parametrize("own", [True, False])
def test_speculators_layout(tmp_path: Path, target: TargetInfo, change: Change, problem: str, own: bool) -> None:
    folder = speculators(tmp_path / "s", target, own)
    assert check_drafter(folder, target) == []
    rewrite(folder, change)
    found = check_drafter(folder, target)
    assert any(problem in fault for fault in found), found


def test_the_layouts_own_server_is_named(tmp_path: Path, target: TargetInfo) -> None:
    folder = speculators(tmp_path / "s", target, ours=True)
    rewrite(folder, tensors=lambda s: s.pop("fc.weight"))
    assert check_drafter(folder, target) == ["model.safetensors: fc.weight is missing; vLLM would leave it random"]


def test_what_is_odd_in_others_is_noted(theirs: Path, target: TargetInfo) -> None:
    assert list(notes_on(read_drafter(theirs), target)) == []
    rewrite(theirs, lambda c: c.update(rope_theta=500.0, rms_norm_eps=1e-2, max_position_embeddings=64))
    assert check_drafter(theirs, target, sglang_version=VERSION) == []
    odd, short = notes_on(read_drafter(theirs), target)
    assert "rope_theta is 500.0, the target's 10000.0; rms_norm_eps is 0.01" in odd
    assert "max_position_embeddings is 64, the target's 256: a server starts with --context-length 64" in short


def test_every_fault_is_named_at_once(ours: Path, target: TargetInfo) -> None:
    def change(stored: dict[str, torch.Tensor]) -> None:
        stored["d2t"] = DRAFT_IDS.clone()
        del stored["t2d"]

    rewrite(ours, tensors=change)
    found = check_drafter(ours, target)
    assert len(found) == 2
    assert "t2d is missing" in found[0]
    assert "d2t holds target ids" in found[1]


def test_another_target_is_told(tmp_path: Path, ours: Path, theirs: Path, target: TargetInfo) -> None:
    other = make_target(tmp_path / "other", num_layers=9)
    assert another_target(read_drafter(ours), target) == []
    (problem,) = another_target(read_drafter(ours), other)
    assert "another model" in problem
    assert another_target(read_drafter(theirs), other) == [], "nobody knows"


def test_others_may_read_what_was_exported(ours: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in ours.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_a_corrected_drafter_is_loaded(theirs: Path, target: TargetInfo) -> None:
    rewrite(theirs, lambda c: c.pop("eagle_config"))
    rewrite(theirs, tensors=lambda s: s.update({"fc.weight": torch.ones(64, 128)}))
    assert check_drafter(theirs, target, [3, 5], VERSION, corrected=True) == []
    assert load_drafter(theirs, target, VERSION, [3, 5]).boundaries == [3, 5]
    (problem,) = check_drafter(theirs, target, [3, 5, 6], VERSION, corrected=True)
    assert "fc.weight is [64, 128], expected [64, 192]" in problem
