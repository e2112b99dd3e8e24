"""Simulated acceptance against a recomputation that drafts position by position, from the exported files alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.drafter.reference import Setting, training_time_test
from tests.training.made import BOUNDARIES, load_job, make_job, write_job
from tests.training.running import run

from eagle3.evaluation.main import main

STEPS = 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    make_job(folder, sequences=60)
    run(load_job(folder, folder / "train", trainer={"epochs": 8}, optim={"lr": 2e-2}))
    return folder


def evaluation_job(folder: Path, out: str, **groups: dict[str, Any]) -> Path:
    path = write_job(folder, folder / out, **groups)
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(raw | {"drafter": str(folder / "train" / "drafter")}))
    return path


def recomputed(folder: Path) -> dict[int, tuple[list[int], list[int]]]:
    """(reached, accepted) of each step by sequence, drafting at one position after the other with the drafter's
    exported files."""
    files = load_file(folder / "train" / "drafter" / "model.safetensors")
    config = json.loads((folder / "train" / "drafter" / "config.json").read_text())
    draft_ids = files.pop("d2t") + torch.arange(config["draft_vocab_size"])
    files.pop("t2d")
    drafter = {name: tensor.double() for name, tensor in files.items()}
    embedding = load_file(folder / "target" / "model.safetensors")["model.embed_tokens.weight"].double()
    prompts = load_file(folder / "prompts" / "prompts.safetensors")
    held_out = set(prompts["sample_ids"][prompts["held_out"] == 1].tolist())
    (shard,) = (folder / "states").glob("*.safetensors")
    dump = load_file(shard)
    half = config["head_dim"] // 2
    setting = Setting(
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        eps=config["rms_norm_eps"],
        angles=torch.tensor([config["rope_theta"] ** (-i / half) for i in range(half)], dtype=torch.float64),
    )
    found: dict[int, tuple[list[int], list[int]]] = {}
    for n, sample in enumerate(dump["sample_ids"].tolist()):
        if sample not in held_out:
            continue
        reached, accepted = found[sample] = [0] * STEPS, [0] * STEPS
        rows = slice(int(dump["offsets"][n]), int(dump["offsets"][n + 1]))
        mask = dump["loss_mask"][rows].bool()
        document = {
            "input_ids": dump["input_ids"][rows].long(),
            "loss_mask": mask,
            "states": torch.cat([dump[f"boundary.{b}"][rows] for b in BOUNDARIES], dim=-1).double(),
            "final": dump["final"][rows].double(),
        }
        said = training_time_test(drafter, setting, [document], embedding, embedding, draft_ids, STEPS, "ce").logits
        greedy = [int((embedding @ state).argmax()) for state in document["final"]]
        for t in range(len(mask)):
            for k in range(STEPS):
                if t + 2 + k >= len(mask) or not mask[t + 2 + k]:
                    break
                reached[k] += 1
                if int(draft_ids[said[k, t].argmax()]) != greedy[t + 1 + k]:
                    break
                accepted[k] += 1
    return found


def test_simulated_acceptance_is_that_of_drafting_position_by_position(trained: Path) -> None:
    job = evaluation_job(trained, "eval")
    assert main([str(job)]) == 0
    found = json.loads((trained / "eval" / "summary.json").read_text())
    by_sequence = recomputed(trained)
    reached, accepted = ([sum(one[i][k] for one in by_sequence.values()) for k in range(STEPS)] for i in (0, 1))
    saved = load_file(trained / "eval" / "sequences.safetensors")
    rows = zip(saved["sample_ids"].tolist(), saved["reached"].tolist(), saved["accepted"].tolist(), strict=True)
    assert {sample: (ours, theirs) for sample, ours, theirs in rows} == by_sequence
    assert reached[0] == found["eval/positions"] > 50
    length, product = 1.0, 1.0
    for k in range(STEPS):
        conditional = accepted[k] / reached[k]
        product *= conditional
        length += product
        assert found[f"eval/cond_acc_step_{k}"] == pytest.approx(conditional)
    assert found["eval/accept_length"] == pytest.approx(length)
    assert sum(found[f"eval/accepts_{j}"] for j in range(STEPS + 1)) == pytest.approx(1)
    # Trained here, so there is something to measure; and the one that training began with is beside it.
    assert found["eval/accept_length"] > found["eval/untrained/accept_length"] + 0.5
    assert {f"eval/untrained/acc_step_{k}" for k in range(STEPS)} <= found.keys()
    rows = [json.loads(line) for line in (trained / "eval" / "metrics.jsonl").read_text().splitlines()]
    assert [row["values"] for row in rows if "values" in row] == [found]
    assert [row["progress"]["done"] for row in rows if "progress" in row][-1] == found["eval/sequences"]


def test_it_agrees_with_the_validation_of_the_chosen_epoch(trained: Path) -> None:
    """But for the rounding to bf16 at export."""
    job = evaluation_job(trained, "eval-alone", evaluate={"untrained": False})
    assert main([str(job)]) == 0
    found = json.loads((trained / "eval-alone" / "summary.json").read_text())
    chosen = json.loads((trained / "train" / "summary.json").read_text())
    assert found["eval/accept_length"] == pytest.approx(chosen["val/accept_length"], abs=0.1)
    assert found["eval/loss"] == pytest.approx(chosen["val/loss"], rel=0.05)
    assert not any("untrained" in name for name in found)


@pytest.mark.parametrize("damage", ["boundaries", "weights", "missing"])
def test_a_drafter_of_another_kind_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    job = evaluation_job(trained, f"eval-{damage}")
    raw: dict[str, Any] = json.loads(job.read_text())
    if damage == "boundaries":
        raw["boundaries"] = [1, 3, 5]
        message = r"trained on boundaries [1, 3, 4], and is to be evaluated on [1, 3, 5]"
    else:
        raw["drafter"] = str(tmp_path / "drafter")
        message = "not a drafter's folder"
        if damage == "weights":
            (tmp_path / "drafter").mkdir()
            source = trained / "train" / "drafter"
            (tmp_path / "drafter" / "config.json").write_text((source / "config.json").read_text())
            whole = (source / "model.safetensors").read_bytes()
            (tmp_path / "drafter" / "model.safetensors").write_bytes(whole[:-100])
    job.write_text(json.dumps(raw))
    assert main([str(job)]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert message in errors


def test_what_a_given_drafter_was_trained_on_is_left_out(trained: Path) -> None:
    """By the tokens before the answer, where its provenance names other prompts than this run's."""
    drafter = trained / "given"
    shutil.copytree(trained / "train" / "drafter", drafter)
    other = trained / "0123456789abcdef"
    shutil.copytree(trained / "prompts", other)
    tensors = load_file(other / "prompts.safetensors")
    ours = tensors["held_out"].clone()
    tensors["held_out"] = ours & (torch.arange(len(ours)) % 2 == 0)  # every other one of ours was trained on
    save_file(tensors, other / "prompts.safetensors")
    (drafter / "provenance.json").write_text(json.dumps({"artifacts": {"prepare": str(other)}}))
    path = evaluation_job(trained, "eval-given", evaluate={"drafter": str(drafter)})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"drafter": str(drafter)}))
    assert main([str(path)]) == 0
    found = json.loads((trained / "eval-given" / "summary.json").read_text())
    saved = set(load_file(trained / "eval-given" / "sequences.safetensors")["sample_ids"].tolist())
    assert saved == set(tensors["sample_ids"][tensors["held_out"] == 1].tolist())
    assert found["eval/left_out"] == int(ours.sum()) - len(saved) > 0
    assert found["eval/training_known"] == 1
    tensors["held_out"] = 1 - ours
    save_file(tensors, other / "prompts.safetensors")
    assert main([str(path)]) == 1, "it has seen all of them"
