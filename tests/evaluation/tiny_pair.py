"""A tiny random target that transformers runs, and a drafter that has learned a little of it, in seconds."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tests.e2e.models import build, tiny_llama
from torch import Tensor

from eagle3.config.schema import DrafterConfig
from eagle3.drafter.batch import Batch, valid_counts
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.ttt import run_ttt, step_weights, target_argmax
from eagle3.evaluation.forward import TransformersTarget
from eagle3.target.info import TargetInfo, read_info
from eagle3.target.weights import load_embedding, load_lm_head

BOUNDARIES, STEPS = [2, 3, 5], 3
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pair:
    info: TargetInfo
    target: TransformersTarget
    """fp32."""
    drafter: Drafter
    draft_ids: Tensor
    embedding: Tensor
    head: Tensor
    prompts: list[list[int]]


def make_pair(folder: Path, prompts: list[list[int]] | None = None, updates: int = 150, num_layers: int = 1) -> Pair:
    """Of the model in `folder`, which is made where there is none. It has learned the answers to these prompts."""
    if not (folder / "config.json").is_file():
        build(tiny_llama(), folder)
    info = read_info(folder)
    target = TransformersTarget(info, BOUNDARIES, CPU, torch.float32)
    embedding, head = load_embedding(info).float(), load_lm_head(info).float()
    generator = torch.Generator().manual_seed(3)
    if prompts is None:
        prompts = [torch.randint(3, info.vocab_size, (n,), generator=generator).tolist() for n in (2, 5, 9, 17, 30, 41)]
    batch = with_top(join([answered(target, prompt, 60) for prompt in prompts]), head)
    said = batch.input_ids[batch.loss_mask].unique()
    draft_ids = said[: max(len(said) - 3, 8)]  # a few of the target's words are out of reach
    shape = DrafterShape.build(
        DrafterConfig(num_layers=num_layers, draft_vocab_size=len(draft_ids)), info, len(BOUNDARIES)
    )
    drafter = Drafter(shape)
    drafter.reset(torch.Generator().manual_seed(5))
    optimiser = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    weights = step_weights(0.8, valid_counts(batch.loss_mask, batch.document, STEPS))
    for _ in range(updates):
        optimiser.zero_grad()
        run_ttt(drafter, batch, embedding, head[draft_ids], draft_ids, STEPS, weights=weights).loss.backward()
        optimiser.step()
    return Pair(info, target, drafter, draft_ids, embedding, head, prompts)


def with_top(batch: Batch, head: Tensor) -> Batch:
    return replace(batch, target_top=target_argmax(batch.final, head))


def answered(target: TransformersTarget, prompt: list[int], count: int) -> Batch:
    """The prompt with the target's greedy answer, and the states of one pass over both."""
    ids = list(prompt)
    target.begin()
    new = ids
    for _ in range(count):
        new = [int(target.forward(new, 1).top)]
        ids += new
    return read(target, ids, len(prompt))


def read(target: TransformersTarget, ids: list[int], prompt: int) -> Batch:
    """As a dump has it: states at every token, from one pass over all."""
    with torch.no_grad():
        out = target.model(torch.tensor([ids]), output_hidden_states=True)
    mask = torch.zeros(len(ids), dtype=torch.bool)
    mask[prompt:] = True
    return Batch(
        input_ids=torch.tensor(ids),
        loss_mask=mask,
        document=torch.zeros(len(ids), dtype=torch.int32),
        position=torch.arange(len(ids)),
        states=torch.cat([out.hidden_states[b][0] for b in BOUNDARIES], dim=-1),
        final=out.hidden_states[-1][0],
        sample_ids=torch.zeros(1, dtype=torch.int64),
    )


def join(batches: list[Batch]) -> Batch:
    """One after the other, each a document of its own."""
    parts = {name: torch.cat([getattr(b, name) for b in batches]) for name in ("input_ids", "loss_mask", "position")}
    parts |= {name: torch.cat([getattr(b, name) for b in batches]) for name in ("states", "final", "sample_ids")}
    lengths = torch.tensor([len(b.input_ids) for b in batches])
    return Batch(document=torch.repeat_interleave(torch.arange(len(batches), dtype=torch.int32), lengths), **parts)
