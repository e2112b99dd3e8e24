"""Real runs of run.py in seconds: trained on states that are imported, so that no server is started."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from tests.data.exchange_cases import Silent
from tests.e2e.chat_model import write_chat_model
from tests.e2e.models import VOCAB
from transformers import AutoModelForCausalLM

from eagle3.config import PROJECT
from eagle3.data.exchange.importing import Import, import_data
from eagle3.data.exchange.table import FORMATS
from eagle3.target.info import read_info

BOUNDARIES = [1, 3, 5]


@torch.no_grad()
def store_as_speculators_v1(model: Path, folder: Path, count: int = 12) -> None:
    """What its generator stores: transformers' own states at the boundaries, and the last one before the norm."""
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    last: list[torch.Tensor] = []
    target.model.norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0]))
    folder.mkdir()
    for i in range(count):
        generator = torch.Generator().manual_seed(i)
        prompt, answer = torch.randint(3, VOCAB, (11,), generator=generator), torch.arange(20 + i % 20) % 5
        # An answer that repeats itself: something that a drafter can learn in a few steps.
        ids = torch.cat([prompt, 3 + prompt[-1] % 40 + answer]).view(1, -1)
        states = target(input_ids=ids, output_hidden_states=True).hidden_states
        mask = (torch.arange(ids.shape[1]) > 10).long()
        columns = [*(states[b][0].clone() for b in BOUNDARIES), last.pop()[0].clone()]
        torch.save({"input_ids": ids[0], "loss_mask": mask, "hidden_states": columns}, folder / f"data_{i}.pt")


def write_place(place: Path, count: int = 60) -> None:
    """A target in place/model, and a dataset of its states in place/states."""
    write_chat_model(place / "model")
    store_as_speculators_v1(place / "model", place / "foreign", count)
    job = Import(place / "foreign", FORMATS["speculators-v1"], BOUNDARIES, read_info(place / "model"))
    import_data(place / "foreign", place / "states", job, Silent())


def copy_project(destination: Path) -> Path:
    """A checkout of its own, whose code no one changes while a test runs."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("conf", "src", "patches"):
        shutil.copytree(PROJECT / name, destination / name, ignore=ignored)
    shutil.copy2(PROJECT / "run.py", destination)
    return destination


def overrides(place: Path, *more: str) -> list[str]:
    return [
        "name=tiny",
        "target=local",
        "target.name=tiny",
        f"target.path={place / 'model'}",
        "dataset=jsonl",
        f"dataset.path={place / 'states'}",
        "server=cpu",
        "trainer=cpu",
        "trainer.epochs=2",
        "trainer.tokens_per_batch=256",
        "layers.boundaries=[1,3,5]",
        "drafter.draft_vocab_size=128",
        "loss.ttt_steps=3",
        "optim.lr=1e-2",
        f"paths.artifacts={place / 'artifacts'}",
        f"paths.runs={place / 'runs'}",
        *more,
    ]


def run(arguments: list[str], cwd: Path, project: Path = PROJECT) -> tuple[int, str]:
    """(exit code, output) of run.py, typed in `cwd`; `project`: the checkout whose code runs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(project / "src")}
    command = [sys.executable, str(project / "run.py"), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def latest(place: Path, name: str = "tiny") -> Path:
    """The run folder made last."""
    return max((place / "runs" / name).iterdir(), key=lambda folder: folder.stat().st_mtime)
