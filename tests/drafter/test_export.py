import ast
import json
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.drafter.targets import make_target

from eagle3.config.schema import DrafterConfig
from eagle3.drafter.capture import capture_ids, captured_boundaries
from eagle3.drafter.check import check_drafter
from eagle3.drafter.export import export_drafter
from eagle3.drafter.load import load_drafter
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.target.info import TargetInfo

DEEPSEEK, KIMI, LLAMA = "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", "LlamaForCausalLM"


@pytest.fixture
def target(tmp_path: Path) -> TargetInfo:
    return make_target(tmp_path / "target")


@pytest.fixture
def exported(tmp_path: Path, target: TargetInfo) -> Path:
    shape = DrafterShape.build(DrafterConfig(draft_vocab_size=48), target, 3)
    drafter = Drafter(shape)
    export_drafter(drafter, torch.arange(10, 106, 2), [2, 4, 5], target, tmp_path / "drafter", "0.5.23")
    return tmp_path / "drafter"


def test_ids_mean_the_trained_boundaries(exported: Path, target: TargetInfo) -> None:
    """vLLM #50170, SGLang #25454: one layer off, 1% instead of 59% acceptance, and the server looks healthy."""
    config = json.loads((exported / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert "eagle_aux_hidden_state_layer_ids" not in config
    assert config["eagle3"]["boundaries"] == [2, 4, 5]
    assert check_drafter(exported, target) == []


@pytest.mark.parametrize(
    ("boundaries", "architecture", "sglang", "ids"),
    [
        ([2, 15, 27], LLAMA, "0.5.23", [1, 14, 26]),
        ([0, 5], LLAMA, "0.5.23", [-1, 4]),
        ([3, 31, 59], DEEPSEEK, "0.5.13", [3, 31, 59]),
        ([3, 31, 59], KIMI, "0.5.23", [3, 31, 59]),
        ([3, 31, 59], KIMI, "0.5.12.post1", [2, 30, 58]),
        ([2, 30, 58], KIMI, "0.5.23", [1, 29, 57]),
        ([2, 30, 58], KIMI, "0.5.10", [1, 29, 57]),
        ([4, 61], "GptOssForCausalLM", "0.5.23", [3, 60]),
        ([4, 30], "GptOssForCausalLM", "0.5.23", [3, 29]),
    ],
)
def test_ids_of_a_version(boundaries: list[int], architecture: str, sglang: str, ids: list[int]) -> None:
    assert capture_ids(boundaries, architecture, 61, sglang) == ids
    assert captured_boundaries(ids, architecture, 61, sglang) == boundaries


def test_boundaries_that_no_ids_mean() -> None:
    with pytest.raises(ConfigError, match=r"layers.boundaries=\[1, 30\].*DeepseekV3"):
        capture_ids([1, 30], DEEPSEEK, 61, "0.5.23")
    assert capture_ids([1, 30], DEEPSEEK, 61, "0.5.12") == [0, 29]


def setter_of(module: str, name: str) -> Callable[[object, list[int]], None]:
    """A class's own setter, cut out of SGLang's source: importing the models takes a GPU's libraries."""
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent / "srt" / "models" / f"{module}.py"
    tree = ast.parse(source.read_text())
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    wanted = "set_eagle3_layers_to_capture"
    function = next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == wanted)
    function.args.args[1].annotation = None
    scope: dict[str, Callable[[object, list[int]], None]] = {}
    exec(ast.unparse(function), scope)
    return scope[wanted]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("llama", LLAMA),
        ("qwen3", "Qwen3ForCausalLM"),
        ("deepseek_v2", "DeepseekV2ForCausalLM"),
        ("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
        ("gpt_oss", "GptOssForCausalLM"),
    ],
)
@pytest.mark.parametrize("ids", [[1, 3, 4], [2, 3, 4], [3, 6], [0, 5], [4, 8]])
def test_the_rule_is_that_of_the_installed_sglang(module: str, name: str, ids: list[int]) -> None:
    served = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=8),
        model=SimpleNamespace(layers_to_capture=None),
    )
    setter_of(module, name)(served, ids)
    assert captured_boundaries(ids, name, 8, version("sglang")) == served.model.layers_to_capture


def rewrite(folder: Path, **changes: object) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        key = name.replace("__", ".")
        if value is None:
            del tensors[key]
        else:
            assert isinstance(value, torch.Tensor)
            tensors[key] = value
    save_file(tensors, folder / "model.safetensors")


def test_absolute_d2t_is_refused(exported: Path, target: TargetInfo) -> None:
    """speculators: loads without complaint and drafts nonsense."""
    rewrite(exported, d2t=torch.arange(10, 106, 2))
    (problem,) = check_drafter(exported, target)
    assert "d2t holds target ids; SGLang reads offsets" in problem


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"fc__weight": None}, "fc.weight is missing; SGLang would leave it random"),
        ({"extra__weight": torch.zeros(1)}, "extra.weight is unknown; SGLang would skip it"),
        ({"norm__weight": torch.zeros(63).bfloat16()}, "norm.weight is [63], expected [64]"),
        ({"norm__weight": torch.zeros(64)}, "norm.weight is torch.float32, expected torch.bfloat16"),
        ({"norm__weight": torch.full((64,), float("nan")).bfloat16()}, "norm.weight has NaN or infinite values"),
        ({"t2d": torch.ones(128, dtype=torch.bool)}, "d2t does not list, in order, the tokens that t2d marks"),
    ],
)
def test_tensors_are_checked(exported: Path, target: TargetInfo, changes: dict[str, object], problem: str) -> None:
    rewrite(exported, **changes)
    (found,) = check_drafter(exported, target)
    assert problem in found


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("architectures", ["LlamaForCausalLM"], "architectures"),
        ("tie_word_embeddings", True, "tie_word_embeddings"),
        ("vocab_size", 127, "vocab_size"),
        ("eagle_config", {}, "SGLang would capture its default boundaries"),
        (
            "eagle_config",
            {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
            "reads the capture ids [2, 4, 5] as boundaries [3, 5, 6], but the drafter was trained on [2, 4, 5]",
        ),
    ],
)
def test_config_is_checked(exported: Path, target: TargetInfo, key: str, value: object, problem: str) -> None:
    file = exported / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    assert any(problem in found for found in check_drafter(exported, target))


def test_a_damaged_folder_is_one_problem(exported: Path, target: TargetInfo) -> None:
    (exported / "model.safetensors").write_bytes(b"no")
    (problem,) = check_drafter(exported, target)
    assert "not a readable safetensors file" in problem
    with pytest.raises(Eagle3Error, match="not a drafter's folder"):
        load_drafter(exported)


def test_broken_weights_are_not_exported(tmp_path: Path, target: TargetInfo) -> None:
    shape = DrafterShape.build(DrafterConfig(draft_vocab_size=48), target, 3)
    drafter = Drafter(shape)
    with torch.no_grad():
        drafter.norm.weight[3] = float("nan")
    with pytest.raises(Eagle3Error, match=r"NaN or infinite weights in norm\.weight"):
        export_drafter(drafter, torch.arange(48), [2, 4, 5], target, tmp_path / "drafter", "0.5.23")
    assert not (tmp_path / "drafter").exists()


@pytest.mark.parametrize("num_layers", [1, 2])
def test_loaded_again(tmp_path: Path, target: TargetInfo, num_layers: int) -> None:
    switches = {"fc_norm": True, "norm_output": True, "attention_bias": True}
    cfg = replace(DrafterConfig(draft_vocab_size=48), num_layers=num_layers, **switches)
    drafter = Drafter(DrafterShape.build(cfg, target, 2))
    ids = torch.arange(48) * 2
    export_drafter(drafter, ids, [3, 6], target, tmp_path / "drafter", "0.5.23")
    loaded = load_drafter(tmp_path / "drafter")
    assert loaded.drafter.shape == drafter.shape
    assert loaded.boundaries == [3, 6]
    assert loaded.embedding is None
    assert torch.equal(loaded.draft_ids, ids)
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(loaded.drafter.state_dict()[name], tensor.bfloat16().float()), name
