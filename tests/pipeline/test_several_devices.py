"""`trainer.devices` above 1 as the pipeline sees it: what is started, what it is called, and what is refused."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.pipeline.test_artifacts import Notes
from tests.training.made import config_of, make_job

from eagle3.config.load import load
from eagle3.config.schema import TrainerConfig
from eagle3.errors import ConfigError, TrainingError
from eagle3.pipeline.child import run_child, training_module
from eagle3.pipeline.gpus import require_gpus
from eagle3.pipeline.stages import _train_inputs


def inputs(**trainer: Any) -> dict[str, Any]:
    return _train_inputs(load(config_of(trainer=trainer)), "extracted", [1, 3])


def test_an_artifact_is_named_by_how_many_train_together() -> None:
    alone = inputs()
    assert alone["trainer"].keys().isdisjoint({"nodes", "master", "strategy"})
    assert alone["trainer"]["devices"] == 1
    assert inputs(devices=8) == inputs(devices=4, nodes=2, master="10.0.0.1:29500") != alone
    assert inputs(devices=8, strategy="sharded") != inputs(devices=8)


def test_a_training_that_is_deterministic_is_another_one_on_a_gpu_only() -> None:
    assert "deterministic" not in inputs()["trainer"]
    assert inputs(accelerator="gpu", deterministic=True)["trainer"]["deterministic"] is True
    assert inputs(deterministic=True) == inputs()


def test_a_drafter_of_one_layer_is_named_as_when_there_were_no_others() -> None:
    def drafter(**changes: Any) -> dict[str, Any]:
        config = load(config_of(drafter={"draft_vocab_size": 32, **changes}))
        return _train_inputs(config, "extracted", [1, 3])["drafter"]

    assert "num_layers" not in drafter()
    assert drafter(num_layers=2)["num_layers"] == 2


def test_one_process_needs_no_torchrun() -> None:
    assert training_module(TrainerConfig()) == "eagle3.training.main"
    assert training_module(TrainerConfig(devices=2)) == "eagle3.training.ranks"
    assert training_module(TrainerConfig(nodes=2)) == "eagle3.training.ranks"


def test_more_devices_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two GPUs are made up: there is none where tests run."""
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=lambda: True, device_count=lambda: 2))
    config = load(config_of(trainer={"accelerator": "gpu", "devices": 3}))
    config.until = "train"
    with pytest.raises(ConfigError, match=r"trainer\.devices: 3, and torch finds 2 GPUs here"):
        require_gpus(config)
    config.trainer.devices = 2
    require_gpus(config)


@pytest.mark.parametrize(
    ("server", "evaluate", "says"),
    [
        ({"tp": 3}, "simulated", "server.tp: 3: the server of extract takes 3, and torch finds 2 GPUs here"),
        (
            {"tp": 2, "flags": {"extraction": {"dp_size": 2}}},
            "simulated",
            r"server.tp: 2 x 2 .*takes 4, and",
        ),
        ({"tp": 1, "flags": {"serving": {"dp_size": 3}}}, "served", "the server of evaluate takes 3, and"),
        ({"tp": 2, "flags": {"common": {"dp_size": 2, "enable_dp_attention": True}}}, "served", None),
        ({"tp": 2, "flags": {"serving": {"dp_size": 9}}}, "simulated", None),
        ({"tp": 9, "device": "cpu"}, "simulated", None),
    ],
)
def test_a_server_of_more_gpus_than_there_are(
    monkeypatch: pytest.MonkeyPatch, server: dict[str, Any], evaluate: str, says: str | None
) -> None:
    """Known before anything is prepared. The two GPUs are made up."""
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=lambda: True, device_count=lambda: 2))
    config = load(config_of(server={"device": "cuda", **server}, evaluate={"kind": evaluate}))
    with pytest.raises(ConfigError, match=says) if says else contextlib.nullcontext():
        require_gpus(config)


def test_a_ranks_own_words_reach_whoever_waits(tmp_path: Path) -> None:
    job = json.loads(make_job(tmp_path, sequences=5, trainer={"devices": 2}).read_text())
    with pytest.raises(TrainingError) as raised:
        run_child("eagle3.training.ranks", job, tmp_path / "out", tmp_path / "train.log", Notes())
    text = str(raised.value)
    assert text.startswith("1 sequences are too few for 2 batches")
    assert "rank0.log" in text or "rank1.log" in text, "both fail; the first to end is the one that is told"
    assert f"(log: {tmp_path / 'train.log'}" in text
