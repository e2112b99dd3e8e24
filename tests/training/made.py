"""A tiny target, conversations and hidden states of it, and the job that trains on them: all made in milliseconds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from eagle3.data.layout import StateShape, state_names
from eagle3.data.placement import Prompts
from eagle3.data.writer import write_dataset
from eagle3.training.job import Job

VOCAB, HIDDEN, LAYERS, BOUNDARIES = 48, 16, 6, [1, 3, 4]


def make_target(folder: Path, seed: int = 0) -> torch.Tensor:
    """config.json and the two tensors that are read; gives the embedding, to which the head is tied."""
    folder.mkdir(parents=True)
    embedding = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(seed)).bfloat16()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.embed_tokens.weight": embedding}, folder / "model.safetensors")
    return embedding


def make_prompts(
    folder: Path,
    sequences: int,
    seed: int,
    held_out_every: int = 5,
    silent: tuple[int, ...] = (),
    longest: int = 39,
) -> Prompts:
    """Walks along a fixed permutation of the tokens, with stray steps; the second half is the response.

    Those sequences whose number ends in a digit of `silent` have no response.
    """
    generator = np.random.default_rng(seed)
    follow = np.random.default_rng(99).permutation(VOCAB)
    ids, mask, lengths = [], [], []
    for number in range(sequences):
        length = int(generator.integers(6, longest + 1))
        token = int(generator.integers(VOCAB))
        for t in range(length):
            ids.append(token)
            mask.append(int(t >= length // 2 and number % 10 not in silent))
            token = int(generator.integers(VOCAB)) if generator.random() < 0.1 else int(follow[token])
        lengths.append(length)
    prompts = Prompts(
        input_ids=np.array(ids, np.int32),
        loss_mask=np.array(mask, np.uint8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        sample_ids=np.arange(sequences, dtype=np.int64) * 2 + 5,
    )
    tensors = {name: torch.from_numpy(getattr(prompts, name)) for name in Prompts.__dataclass_fields__}
    tensors["held_out"] = torch.tensor([i % held_out_every == 0 for i in range(sequences)], dtype=torch.uint8)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "prompts.safetensors")
    return prompts


def make_states(
    folder: Path,
    prompts: Prompts,
    embedding: torch.Tensor,
    seed: int,
    shard_gib: float = 2.0,
    dtype: str = "bfloat16",
) -> None:
    """Final states that point at the token the walk goes to; captured states that know a little of where it is."""
    follow = torch.from_numpy(np.random.default_rng(99).permutation(VOCAB))
    shape = StateShape(tuple(state_names([*BOUNDARIES, 5])), HIDDEN, dtype)

    def states_of(i: int) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(prompts.input_ids[prompts.offsets[i] : prompts.offsets[i + 1]]).long()
        generator = torch.Generator().manual_seed(seed * 1000 + i)
        noise = {n: torch.randn(len(ids), HIDDEN, generator=generator) for n in shape.states}
        states = {n: (embedding[ids].float() + noise[n]).bfloat16() for n in shape.states}
        return states | {"final": (2 * embedding[follow[ids]].float() + 0.3 * noise["final"]).bfloat16()}

    manifest = write_dataset(folder, prompts, shape, states_of, shard_gib, vocab_size=VOCAB)
    manifest.sglang_version = "0.5.23"
    manifest.save(folder)


def config_of(**groups: dict[str, Any]) -> dict[str, Any]:
    """A plain configuration; `groups` change it, e.g. `trainer={"epochs": 2}`."""
    config: dict[str, Any] = {
        "name": "test",
        "seed": 3,
        "target": {"name": "tiny", "path": "tiny"},
        "dataset": {"name": "walks", "path": "walks.jsonl", "max_length": 128},
        "layers": {"boundaries": BOUNDARIES},
        "drafter": {"draft_vocab_size": 32},
        "loss": {"ttt_steps": 3},
        "optim": {"lr": 1e-2, "warmup_ratio": 0.1},
        "trainer": {
            "accelerator": "cpu",
            "epochs": 2,
            "tokens_per_batch": 128,
            "precision": "fp32",
            "num_workers": 0,
            "checkpoint_every": 100,
            "log_every": 1,
        },
    }
    for group, changes in groups.items():
        config[group] = {**config.get(group, {}), **changes}
    return config


def make_job(folder: Path, sequences: int = 40, seed: int = 0, **groups: dict[str, Any]) -> Path:
    """Target, prompts, states and JOB.json below `folder`; gives the job's path. The output folder is `folder/out`."""
    if not (folder / "target").exists():
        embedding = make_target(folder / "target")
        dtype = groups.get("dataset", {}).get("dtype", "bfloat16")
        make_states(folder / "states", make_prompts(folder / "prompts", sequences, seed), embedding, seed, dtype=dtype)
    return write_job(folder, folder / "out", **groups)


def write_job(folder: Path, out: Path, **groups: dict[str, Any]) -> Path:
    """JOB.json of another training over the same data."""
    out.mkdir(parents=True, exist_ok=True)
    job = {
        "config": config_of(**groups),
        "dataset": str(folder / "states"),
        "prompts": str(folder / "prompts"),
        "target": str(folder / "target"),
        "text_prefix": "",
        "boundaries": BOUNDARIES,
        "out": str(out),
    }
    (out / "job.json").write_text(json.dumps(job))
    return out / "job.json"


def load_job(folder: Path, out: Path, **groups: dict[str, Any]) -> Job:
    return Job.load(write_job(folder, out, **groups))
