"""What we export, read by the other projects' own loaders: every number is where their trainers look for it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.data.exchange_cases import LENGTHS, Silent, content, write_states
from tests.peers import peer_path
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eagle3.data.exchange.exporting import export_data
from eagle3.data.exchange.norm import FinalNorm
from eagle3.data.exchange.table import FORMATS
from eagle3.data.shards import HiddenStates
from eagle3.target.info import TargetInfo

BOUNDARIES = [1, 3]
SPECULATORS = """
import torch
from safetensors.torch import save_file
from speculators.train.data import ArrowDataset, CollateFn
data = ArrowDataset(64, args["folder"], on_missing="raise")
items = [data[i] for i in range(len(data))]
save_file({f"{i}.{k}": v.contiguous() for i, item in enumerate(items) for k, v in item.items()}, args["out"])
batch = CollateFn(64, 16, 2)(items)
print(data.approx_lengths, (batch["document_ids"] >= 0).sum().item())
"""
SPECULATORS_V1 = """
# Their package does not import with today's pydantic; their loader needs none of it.
import os, types
package = types.ModuleType("speculators")
package.__path__ = [os.path.join(os.environ["PYTHONPATH"], "speculators")]
sys.modules["speculators"] = package
import torch
from safetensors.torch import save_file
from speculators.train.data import Eagle3SampleFileDataset, list_files, standardize_data_v1
files = sorted(list_files(args["folder"]))
data = Eagle3SampleFileDataset(64, file_list=files, hidden_states_dtype=torch.bfloat16)
items = [data[i] for i in range(len(data))]
save_file({f"{i}.{k}": v.contiguous() for i, item in enumerate(items) for k, v in item.items()}, args["out"])
"""
SPECFORGE = """
from safetensors.torch import save_file
from specforge.algorithms.eagle3.data import build_offline_collator, build_offline_normalizer, build_offline_reader
from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader
from specforge.runtime.data_plane.feature_store import LocalFeatureStore
reader = build_offline_reader(args["folder"], run_id="t", ttt_length=7, max_len=64)
reader.validate_files = True
loader = FeatureDataLoader(
    LocalFeatureStore(), refs=reader.read(), collate_fn=build_offline_collator(),
    per_sample_transform=build_offline_normalizer(64), num_workers=0,
)
items = [{k: v for k, v in batch.tensors.items() if v is not None} for batch in loader]
save_file({f"{i}.{k}": v.contiguous() for i, item in enumerate(items) for k, v in item.items()}, args["out"])
"""


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory, target: TargetInfo) -> HiddenStates:
    return write_states(tmp_path_factory.mktemp("own") / "d", target, BOUNDARIES, LENGTHS)


def run(peer: Path, script: str, **arguments: str) -> str:
    """Runs Python code in a process of its own, with a peer's packages and `arguments` as `args`; gives its output."""
    code = f"import json, sys\nargs = json.loads(sys.argv[1])\n{script}"
    env = {**os.environ, "PYTHONPATH": str(peer), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def read_by(
    peer: Path, name: str, script: str, states: HiddenStates, target: TargetInfo, tmp_path: Path
) -> tuple[list[dict[str, Any]], str]:
    form, folder, out = FORMATS[name], tmp_path / "there", tmp_path / "read.safetensors"
    export_data(states.folder, folder, form, Silent(), target=target if form.final == "pre" else None)
    said = run(peer, script, folder=str(folder), out=str(out))
    tensors = load_file(out)
    items = [{k.split(".", 1)[1]: v for k, v in tensors.items() if k.startswith(f"{i}.")} for i in range(len(LENGTHS))]
    return items, said


def captured(states: HiddenStates, i: int) -> torch.Tensor:
    found = content(states, i)
    return torch.cat([found[f"boundary.{b}"] for b in BOUNDARIES], dim=-1)


def require_normed_to(last: torch.Tensor, states: HiddenStates, i: int, target: TargetInfo, rows: slice) -> None:
    """The norm that their trainer applies makes our final state of their last one, within bfloat16's rounding."""
    own = FinalNorm.of(target)
    norm = LlamaRMSNorm(target.hidden_size, target.rms_norm_eps)
    norm.load_state_dict({"weight": own.gain})
    made, final = norm(last.float()), content(states, i)["final"][rows].float()
    assert ((made - final).abs() <= final.abs() * 2**-7).all()


def test_speculators(tmp_path, states, target):
    items, said = read_by(peer_path("speculators", "0.9.0"), "speculators", SPECULATORS, states, target, tmp_path)
    assert said.split("\n")[-2] == f"{LENGTHS} {sum(LENGTHS)}"
    for i, item in enumerate(items):
        found = content(states, i)
        assert torch.equal(item["hidden_states"], captured(states, i))
        assert torch.equal(item["input_ids"], found["input_ids"].long())
        assert torch.equal(item["loss_mask"], found["loss_mask"].long())
        require_normed_to(item["verifier_last_hidden_states"], states, i, target, slice(None))


def test_speculators_v1(tmp_path, states, target):
    items, _ = read_by(peer_path("speculators", "0.4.0"), "speculators-v1", SPECULATORS_V1, states, target, tmp_path)
    for i, item in enumerate(items):  # which it shifts against each other: x1 beside g0, y1 and l1
        found = content(states, i)
        assert torch.equal(item["hidden_states"], captured(states, i)[:-1])
        assert torch.equal(item["input_ids"], found["input_ids"].long()[1:])
        assert torch.equal(item["loss_mask"], found["loss_mask"].long()[1:])
        require_normed_to(item["verifier_last_hidden_states"], states, i, target, slice(1, None))


def test_specforge(tmp_path, states, target):
    items, _ = read_by(peer_path("specforge", "0.2.0"), "specforge", SPECFORGE, states, target, tmp_path)
    for i, item in enumerate(items):
        found = content(states, i)
        assert torch.equal(item["hidden_state"][0], captured(states, i))
        assert torch.equal(item["target"][0], found["final"])
        assert torch.equal(item["input_ids"][0], found["input_ids"].long())
        wanted = found["loss_mask"].long()
        wanted[-1] = 0  # it never trains on the last token
        assert torch.equal(item["loss_mask"][0].long().flatten(), wanted)
