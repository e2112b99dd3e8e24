from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.drafter.cases import SHAPE
from tests.drafter.targets import make_target

from eagle3.config.schema import DrafterConfig, RopeScaling
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import ConfigError
from eagle3.target.info import TargetInfo


@pytest.fixture
def target(tmp_path: Path) -> TargetInfo:
    return make_target(tmp_path)


def test_null_is_the_targets(target: TargetInfo) -> None:
    shape = DrafterShape.build(DrafterConfig(draft_vocab_size=100), target, 3)
    assert (shape.hidden_size, shape.intermediate_size, shape.num_heads, shape.num_kv_heads) == (64, 96, 4, 2)
    assert (shape.head_dim, shape.rope_theta, shape.vocab_size, shape.context_length) == (16, 10000.0, 128, 256)
    chosen = DrafterShape.build(DrafterConfig(draft_vocab_size=100, hidden_size=32, rope_theta=5e4), target, 2)
    assert (chosen.hidden_size, chosen.target_hidden_size, chosen.rope_theta, chosen.num_boundaries) == (32, 64, 5e4, 2)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"draft_vocab_size": 129}, "drafter.draft_vocab_size=129"),
        ({"head_dim": 15}, "drafter.head_dim=15"),
        ({"num_kv_heads": 3}, "drafter.num_kv_heads=3"),
        ({"num_heads": 0}, "drafter.num_heads=0"),
        ({"num_layers": 0}, "drafter.num_layers=0"),
        ({"hidden_size": -1}, "drafter.hidden_size=-1"),
        ({"rope_theta": 0.0}, "drafter.rope_theta=0"),
        ({"rms_norm_eps": 0.0}, "drafter.rms_norm_eps=0"),
        ({"rope_scaling": RopeScaling("ntk", 2.0, 64)}, "drafter.rope_scaling.type='ntk'"),
        ({"rope_scaling": RopeScaling("yarn", 0.5, 64)}, "drafter.rope_scaling.factor=0.5"),
        ({"fc_norm": True, "hidden_size": 192}, "drafter.fc_norm=true"),
    ],
)
def test_what_cannot_be_names_its_key(target: TargetInfo, changes: dict[str, object], key: str) -> None:
    cfg = replace(DrafterConfig(draft_vocab_size=100), **changes)
    with pytest.raises(ConfigError, match=key):
        DrafterShape.build(cfg, target, 3)


def test_state_has_sglangs_names_and_no_embedding() -> None:
    names = set(Drafter(SHAPE).state_dict())
    assert names == {
        "fc.weight",
        "midlayer.self_attn.q_proj.weight",
        "midlayer.self_attn.k_proj.weight",
        "midlayer.self_attn.v_proj.weight",
        "midlayer.self_attn.o_proj.weight",
        "midlayer.mlp.gate_proj.weight",
        "midlayer.mlp.up_proj.weight",
        "midlayer.mlp.down_proj.weight",
        "midlayer.input_layernorm.weight",
        "midlayer.hidden_norm.weight",
        "midlayer.post_attention_layernorm.weight",
        "norm.weight",
        "lm_head.weight",
    }
    new = set(Drafter(replace(SHAPE, fc_norm=True)).state_dict())
    assert new - names == {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"}
    layer = {name.removeprefix("midlayer.") for name in names if name.startswith("midlayer.")}
    deep = set(Drafter(replace(SHAPE, num_layers=3)).state_dict())
    further = layer - {"input_layernorm.weight"}
    assert deep - names == {f"layers.{n}.{name}" for n in (1, 2) for name in further}


def test_the_head_starts_as_the_targets_rows_at_unit_length() -> None:
    head, ids = torch.randn(40, 12), torch.arange(0, 32, 2)
    drafter = Drafter(SHAPE)
    drafter.start_from(head[ids])
    assert torch.allclose(drafter.lm_head.weight, head[ids] / head[ids].norm(dim=1).mean())
    assert abs(drafter.lm_head.weight.norm(dim=1).mean().item() - 1) < 1e-5
    narrow = Drafter(replace(SHAPE, hidden_size=8))
    before = narrow.lm_head.weight.clone()
    narrow.start_from(head[ids])
    assert torch.equal(narrow.lm_head.weight, before)
