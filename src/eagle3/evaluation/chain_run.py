"""`evaluate=chain`: acceptance of real drafts on held-out prompts, from a job to `summary.json`."""

import json
import time
from pathlib import Path
from typing import Any

import torch

from eagle3.drafter.shape import DrafterShape
from eagle3.evaluation.chain import ChainDrafter, ChainFigures, run_chain
from eagle3.evaluation.forward import TransformersTarget
from eagle3.evaluation.open import open_drafter
from eagle3.evaluation.prompts import load_prompts
from eagle3.metrics import Reporter
from eagle3.training.frozen import Frozen, initial_drafter
from eagle3.training.job import Job
from eagle3.training.machine import Machine

TRAINED, UNTRAINED = "eval", "eval/untrained"
CHAINS = "chains.jsonl"


def evaluate_chain(job: Job, machine: Machine, reporter: Reporter) -> dict[str, Any]:
    """Measures the drafter and, if asked, the one that training began with. Gives what summary.json has.

    `chains.jsonl` beside it has each answer: its tokens, and of each pass of the target what was drafted and accepted.

    Raises:
        Eagle3Error: the drafter is not one that a server would serve as trained, or can't be computed with.
    """
    begin = time.perf_counter()
    machine.settle(job.config.seed)
    cfg, device = job.config, machine.device
    loaded = open_drafter(job)
    sets = load_prompts(cfg, job.target, job.prompts, reporter)
    dtype = torch.bfloat16 if cfg.trainer.precision == "bf16" else torch.float32
    target = TransformersTarget(job.target, loaded.boundaries, device, dtype, cfg.target.trust_remote_code)
    frozen = Frozen.load(job.target, loaded.draft_ids).to(device)
    embedding = frozen.embedding if loaded.embedding is None else loaded.embedding.to(device)
    contenders = {TRAINED: ChainDrafter(loaded.drafter.to(device), embedding, frozen.draft_ids, dtype)}
    if cfg.evaluate.untrained and cfg.evaluate.drafter is None:
        shape = DrafterShape.build(cfg.drafter, job.target, len(loaded.boundaries))
        untrained = initial_drafter(shape, frozen, cfg.seed).to(device)
        contenders[UNTRAINED] = ChainDrafter(untrained, frozen.embedding, frozen.draft_ids, dtype)
    steps = cfg.evaluate.drafts[0].steps
    whole = {name: ChainFigures(steps) for name in contenders}
    by_set = {prompt.set: ChainFigures(steps) for prompt in sets.prompts}
    with (job.out / CHAINS).open("w", encoding="utf-8") as file:
        for done, prompt in enumerate(sets.prompts, 1):
            for name, drafter in contenders.items():
                ids, most = prompt.input_ids, cfg.evaluate.max_new_tokens
                chain = run_chain(target, drafter, ids, steps, most, sets.end_ids)
                whole[name].add(chain)
                if name == TRAINED:
                    by_set[prompt.set].add(chain)
                    rounds = [vars(round_) for round_ in chain.rounds]
                    row = {"set": prompt.set, "key": prompt.key, "output_ids": chain.output_ids, "rounds": rounds}
                    file.write(json.dumps(row) + "\n")
            length = round(whole[TRAINED].accept_length, 3)
            reporter.progress(done, len(sets.prompts), unit="prompts", accept_length=length)
    summary: dict[str, Any] = {"eval/kind": "chain", "eval/sequences": len(sets.prompts)}
    for name, figures in whole.items():
        summary |= figures.metrics(name)
        reporter.note(f"{name}: accept length {figures.accept_length:.3f} of real drafts, {len(sets.prompts)} prompts")
    summary |= {f"eval/{name}/accept_length": figures.accept_length for name, figures in by_set.items()}
    summary |= {"eval/steps": steps, "eval/seconds": time.perf_counter() - begin}
    reporter.log({name: value for name, value in summary.items() if name != "eval/kind"}, step=len(sets.prompts))
    _write(job.out / "summary.json", summary)
    return summary


def _write(path: Path, summary: dict[str, Any]) -> None:
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
