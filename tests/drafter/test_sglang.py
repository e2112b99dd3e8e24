"""An exported drafter in SGLang's own class: every key is taken, and every drafting step equals training's."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.drafter.foreign import rewrite
from tests.drafter.targets import make_target

from eagle3.config.schema import DrafterConfig, RopeScaling
from eagle3.drafter.batch import Batch
from eagle3.drafter.check import check_drafter
from eagle3.drafter.export import export_drafter
from eagle3.drafter.load import load_drafter
from eagle3.drafter.model import Drafter, Weights
from eagle3.drafter.plan import Plan
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.ttt import step_states
from eagle3.target.weights import load_embedding

STEPS, LENGTH = 4, 9
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("sglang_drafter.py")


@dataclass(frozen=True)
class Made:
    changes: dict[str, object] = field(default_factory=dict)
    boundaries: tuple[int, ...] = (2, 4, 5)
    plain: tuple[str, ...] | None = None
    """Which names begin as ours do, where all others have `model.` in front."""


MADE = {
    "plain": Made(),
    "eagle-3.1": Made({"fc_norm": True, "norm_output": True}),
    "bias-and-heads": Made({"attention_bias": True, "num_kv_heads": 4, "head_dim": 32}),
    "another-width": Made({"hidden_size": 32}),
    "one-boundary": Made({}, (4,)),  # as wide as the drafter: SGLang skips fc
    "llama3": Made({"rope_scaling": RopeScaling("llama3", 8.0, 64)}, (1, 2, 4, 6)),
    "two-layers": Made({"num_layers": 2}),
    "three-layers": Made({"num_layers": 3, "norm_output": True, "hidden_size": 32, "attention_bias": True}),
    "yarn": Made({"rope_scaling": RopeScaling("yarn", 4.0, 64)}),
    "linear-full-vocabulary": Made({"rope_scaling": RopeScaling("linear", 2.0), "draft_vocab_size": 128}),
    "prefixed": Made({"num_layers": 2, "hidden_size": 32}, plain=("lm_head.weight",)),
    "prefixed-head": Made(plain=()),
}
WITHOUT_A_HEAD = "prefixed-head"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All drafters exported, and drafted with by SGLang in one process (it takes long to start)."""
    folder = tmp_path_factory.mktemp("sglang")
    for name, made in MADE.items():
        make(folder / name, made)
    environment = os.environ | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "patches" / "cpu_kernels"),
    }
    command = [sys.executable, PROGRAM, *(folder / name for name in MADE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def make(case: Path, made: Made) -> None:
    target = make_target(case / "target")
    shape = DrafterShape.build(
        replace(DrafterConfig(draft_vocab_size=48), **made.changes), target, len(made.boundaries)
    )
    torch.manual_seed(0)
    drafter = Drafter(shape)
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if parameter.ndim == 1 else 0.0, std=0.2)
    draft_ids = torch.randperm(shape.vocab_size)[: shape.draft_vocab_size].sort().values
    export_drafter(drafter, draft_ids, list(made.boundaries), target, case / "drafter", "0.5.23")
    assert check_drafter(case / "drafter", target) == []
    if (plain := made.plain) is not None:
        rewrite(
            case / "drafter",
            tensors=lambda s: [s.update({f"model.{name}": s.pop(name)}) for name in [*s] if name not in plain],
        )
    own = load_drafter(case / "drafter").embedding
    given = {
        "input_ids": torch.randint(shape.vocab_size, (LENGTH,)),
        "states": torch.randn(LENGTH, len(made.boundaries) * shape.target_hidden_size),
        "embedding": (load_embedding(target) if own is None else own).float(),
        "draft_ids": draft_ids,
        "steps": torch.tensor(STEPS),
    }
    save_file(given, case / "in.safetensors")


@pytest.mark.parametrize("name", MADE)
def test_sglang_takes_every_key_and_captures_the_trained_boundaries(cases: Path, name: str) -> None:
    found = json.loads((cases / name / "out.json").read_text())
    unused = {None: ["t2d"], (): ["model.lm_head.weight", "model.t2d"]}
    assert found["unused"] == unused.get(MADE[name].plain, ["model.t2d"])
    # Of a drafter as wide as the captured states SGLang makes an fc that it never uses.
    assert found["missing"] == {"one-boundary": ["model.fc.weight"], WITHOUT_A_HEAD: ["lm_head.weight"]}.get(name, [])
    assert found["ids"] == [b - 1 for b in MADE[name].boundaries]
    served, given = load_file(cases / name / "out.safetensors"), load_file(cases / name / "in.safetensors")
    assert torch.equal(served["hot_token_id"], given["draft_ids"])


@pytest.mark.parametrize("name", [name for name in MADE if name != WITHOUT_A_HEAD])
def test_sglang_drafts_as_it_was_trained(cases: Path, name: str) -> None:
    served, given = load_file(cases / name / "out.safetensors"), load_file(cases / name / "in.safetensors")
    loaded = load_drafter(cases / name / "drafter")
    assert torch.equal(loaded.draft_ids, given["draft_ids"])
    assert loaded.boundaries == list(MADE[name].boundaries)
    batch = Batch(
        input_ids=given["input_ids"],
        loss_mask=torch.ones(LENGTH, dtype=torch.bool),
        document=torch.zeros(LENGTH, dtype=torch.int32),
        position=torch.arange(LENGTH),
        states=given["states"],
        final=torch.zeros(LENGTH, loaded.drafter.shape.target_hidden_size),
        sample_ids=torch.tensor([0]),
    )
    plan = Plan.of(batch, STEPS)
    weights = Weights.of(loaded.drafter, torch.float32)
    with torch.no_grad():
        states = step_states(loaded.drafter, weights, batch, given["embedding"], plan, torch.float32)
        for k, state in enumerate(states):
            trained = state @ loaded.drafter.lm_head.weight.t()
            expected = served["logits"][k, plan.active[plan.scored[k]]]
            torch.testing.assert_close(trained, expected, rtol=1e-4, atol=2e-4)
