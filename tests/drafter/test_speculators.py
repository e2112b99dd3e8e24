"""The folder for vLLM, loaded by speculators 0.9.0 itself: every key taken, none missing, and the same drafts."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.drafter.foreign import DRAFT_IDS, rewrite
from tests.drafter.targets import make_target
from tests.peers import peer_path
from torch import Tensor

from eagle3.config.schema import DrafterConfig, RopeScaling
from eagle3.drafter.batch import Batch
from eagle3.drafter.check import check_drafter
from eagle3.drafter.load import load_drafter
from eagle3.drafter.model import Drafter, Weights
from eagle3.drafter.plan import Plan
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.speculators import export_speculators
from eagle3.drafter.ttt import step_states
from eagle3.errors import ConfigError
from eagle3.target.info import TargetInfo
from eagle3.target.weights import load_embedding

BOUNDARIES = [2, 4, 5]


@pytest.fixture(scope="module")
def model_class() -> Any:
    folder = str(peer_path("speculators", "0.9.0"))
    if folder not in sys.path:
        sys.path.append(folder)
    from speculators import SpeculatorModel

    return SpeculatorModel


@pytest.fixture
def target(tmp_path: Path) -> TargetInfo:
    return make_target(tmp_path / "target")


def exported(folder: Path, target: TargetInfo, **changes: Any) -> Drafter:
    cfg = DrafterConfig(**{"draft_vocab_size": 48, **changes})
    drafter = Drafter(DrafterShape.build(cfg, target, len(BOUNDARIES)))
    with torch.no_grad():
        for parameter in drafter.parameters():  # far from their initial values, in numbers that bf16 holds
            parameter.add_(0.1 * torch.randn_like(parameter)).copy_(parameter.bfloat16().float())
    ids = DRAFT_IDS if cfg.draft_vocab_size == 48 else torch.arange(cfg.draft_vocab_size)
    export_speculators(drafter, ids, BOUNDARIES, target, folder, str(target.path))
    return drafter


def load(model_class: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers tells of loading it, also of the keys that speculators keeps quiet about."""
    model = model_class.from_pretrained(str(folder))
    monkeypatch.setattr(type(model), "_keys_to_ignore_on_load_missing", [])
    _, told = model_class.from_pretrained.__func__(type(model), str(folder), output_loading_info=True)
    return model.float(), told


VARIANTS: list[dict[str, Any]] = [
    {},
    {"fc_norm": True, "norm_output": True},
    {"draft_vocab_size": 128},
    {"num_heads": 8, "num_kv_heads": 4, "head_dim": 8, "rms_norm_eps": 0.1},
    {"num_layers": 3},
    {"rope_scaling": RopeScaling("llama3", 8.0, 16)},
    {"rope_scaling": RopeScaling("yarn", 4.0, 16)},
    {"rope_scaling": RopeScaling("linear", 4.0)},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda x: "-".join(map(str, x)) or "plain")
def test_it_is_loaded_whole_and_drafts_the_same(
    tmp_path: Path, target: TargetInfo, model_class: Any, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = exported(tmp_path / "drafter", target, **changes)
    model, told = load(model_class, tmp_path / "drafter", monkeypatch)
    # The target's own, which speculators reads from the target and saves in no drafter.
    assert set(told["missing_keys"]) == {"verifier_norm.weight", "verifier_lm_head.weight"}
    assert not told["unexpected_keys"]
    assert not told.get("mismatched_keys")
    stored = model.state_dict()
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(stored[their_name(name)].float(), tensor), name
    assert torch.equal(stored["embed_tokens.weight"].bfloat16(), load_embedding(target))
    if drafter.shape.draft_vocab_size != drafter.shape.vocab_size:
        assert torch.equal(stored["d2t"] + torch.arange(48), DRAFT_IDS)
        assert torch.equal(stored["t2d"].nonzero()[:, 0], DRAFT_IDS)
    assert model.target_layer_ids == BOUNDARIES

    ids, states = torch.randint(128, (129,)), torch.randn(129, 3 * 64)
    steps = 3
    ours = first_choices(drafter, load_embedding(target).float(), ids, states, steps)
    stance: Any = torch.compiler.set_stance("force_eager")
    with torch.no_grad(), stance:
        model.eval()
        # It takes x_{t+1} beside the state of t.
        theirs = model(states[None, :-1], ids[None, 1:], torch.zeros(1, 128, dtype=torch.int64), ttt_steps=steps)
    for k in range(steps):
        whole = 128 - k  # later rows of step k read past the sequence
        assert torch.equal(theirs[k][0, :whole], ours[k][:whole]), k


def their_name(name: str) -> str:
    """Its further layers are plain Llama layers."""
    name = name.replace("midlayer.", "layers.0.")
    return name if name.startswith("layers.0.") else name.replace("hidden_norm", "input_layernorm")


def first_choices(drafter: Drafter, embedding: Tensor, ids: Tensor, states: Tensor, steps: int) -> list[Tensor]:
    """Ours: of each step the most likely draft token at positions 0 .. n-2-k, where a token to predict is known."""
    n = len(ids)
    longer = torch.cat((ids, ids.new_zeros(1)))  # so that the last position is scored as well
    batch = Batch(
        input_ids=longer,
        loss_mask=torch.ones(n + 1, dtype=torch.bool),
        document=torch.zeros(n + 1, dtype=torch.int32),
        position=torch.arange(n + 1),
        states=torch.cat((states, states.new_zeros(1, states.shape[1]))),
        final=torch.zeros(n + 1, drafter.shape.target_hidden_size),
        sample_ids=torch.zeros(1, dtype=torch.int64),
    )
    plan = Plan.of(batch, steps)
    with torch.no_grad():
        found = step_states(drafter, Weights.of(drafter, torch.float32), batch, embedding, plan, torch.float32)
        return [(rows @ drafter.lm_head.weight.t()).argmax(-1) for rows in found]


def test_it_is_read_back_and_verified(tmp_path: Path, target: TargetInfo) -> None:
    drafter = exported(tmp_path / "drafter", target, fc_norm=True, num_layers=2)
    assert check_drafter(tmp_path / "drafter", target) == []
    loaded = load_drafter(tmp_path / "drafter", target)
    assert loaded.boundaries == BOUNDARIES
    assert torch.equal(loaded.draft_ids, DRAFT_IDS)
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(loaded.drafter.state_dict()[name], tensor), name
    assert any("boundaries [2, 4, 5]" in p for p in check_drafter(tmp_path / "drafter", target, [3, 5, 6]))


def test_names_as_in_a_whole_model_are_found_by_no_vllm(tmp_path: Path, target: TargetInfo) -> None:
    exported(tmp_path / "drafter", target)
    rewrite(tmp_path / "drafter", tensors=lambda s: s.update({"model.fc.weight": s.pop("fc.weight")}))
    found = check_drafter(tmp_path / "drafter", target)
    assert "1 name with `model.` in front, such as model.fc.weight: vLLM puts that there itself" in found[0]


@pytest.mark.parametrize("changes", [{"hidden_size": 32, "head_dim": 8}, {"attention_bias": True}])
def test_what_the_layout_has_no_place_for_is_refused(
    tmp_path: Path, target: TargetInfo, changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="--format sglang"):
        exported(tmp_path / "drafter", target, **changes)
    assert not (tmp_path / "drafter").exists()
