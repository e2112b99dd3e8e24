"""`evaluate=chain`: acceptance of real drafts on held-out prompts, from a job to `summary.json`."""

import json
import time
from pathlib import Path
from typing import Any

import torch

from eagle3.config.schema import Config
from eagle3.data.json_file import write_json
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import ConfigError
from eagle3.evaluation.chain import ChainDrafter, ChainFigures, run_chain
from eagle3.evaluation.forward import TransformersTarget
from eagle3.evaluation.open import checked
from eagle3.evaluation.prompts import load_prompts
from eagle3.metrics import Reporter
from eagle3.target.info import TargetInfo
from eagle3.training.frozen import Frozen, initial_drafter
from eagle3.training.job import Job
from eagle3.training.machine import Machine

TRAINED, UNTRAINED = "eval", "eval/untrained"
CHAINS = "chains.jsonl"


def evaluate_chain(job: Job, machine: Machine, reporter: Reporter) -> dict[str, Any]:
    """`run_chains` of a job's drafter."""
    if job.drafter is None:
        raise ConfigError("The job names no drafter to evaluate.")
    return run_chains(job.config, job.target, job.drafter, job.prompts, job.out, machine, reporter)


def run_chains(
    cfg: Config,
    info: TargetInfo,
    folder: Path,
    prompts: Path | None,
    out: Path,
    machine: Machine,
    reporter: Reporter,
) -> dict[str, Any]:
    """Measures the drafter and, if asked, the one that training began with. Gives what summary.json has.

    `chains.jsonl` beside it has each answer: its tokens, and of each pass of the target what was drafted and accepted.

    Args:
        folder: the drafter's.
        prompts: folder of prepare; None where what the drafter was trained on is not known.

    Raises:
        Eagle3Error: the drafter is not one that a server would serve as trained, or can't be computed with.
    """
    begin = time.perf_counter()
    machine.settle(cfg.seed)
    device, loaded = machine.device, checked(folder, info, cfg.server.python)
    sets = load_prompts(cfg, info, prompts, reporter)
    dtype = torch.bfloat16 if cfg.trainer.precision == "bf16" else torch.float32
    target = TransformersTarget(info, loaded.boundaries, device, dtype, cfg.target.trust_remote_code)
    frozen = Frozen.load(info, loaded.draft_ids).to(device)
    embedding = frozen.embedding if loaded.embedding is None else loaded.embedding.to(device)
    contenders = {TRAINED: ChainDrafter(loaded.drafter.to(device), embedding, frozen.draft_ids, dtype)}
    if cfg.evaluate.untrained and cfg.evaluate.drafter is None:
        shape = DrafterShape.build(cfg.drafter, info, len(loaded.boundaries))
        untrained = initial_drafter(shape, frozen, cfg.seed).to(device)
        contenders[UNTRAINED] = ChainDrafter(untrained, frozen.embedding, frozen.draft_ids, dtype)
    steps = cfg.evaluate.drafts[0].steps
    whole = {name: ChainFigures(steps) for name in contenders}
    by_set = {prompt.set: ChainFigures(steps) for prompt in sets.prompts}
    with (out / CHAINS).open("w", encoding="utf-8") as file:
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
    write_json(out / "summary.json", summary)
    return summary
