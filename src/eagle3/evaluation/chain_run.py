"""`evaluate=chain`: acceptance of real drafts on held-out prompts, from a job to `summary.json`."""

import time
from pathlib import Path
from typing import Any

import torch

from eagle3.config.schema import Config
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import ConfigError, DataError
from eagle3.evaluation.agreement import agreement
from eagle3.evaluation.chain import ChainDrafter, ChainFigures, run_chain
from eagle3.evaluation.chains import Answered, ChainJournal, counts_of
from eagle3.evaluation.figures import name_of
from eagle3.evaluation.followed import greedy_replies
from eagle3.evaluation.forward import TransformersTarget
from eagle3.evaluation.open import checked
from eagle3.evaluation.prompts import Prompt, load_prompts
from eagle3.evaluation.trained_on import drafter_sha256, training_figures, weights_sha256
from eagle3.files.json_file import json_or_empty, write_json
from eagle3.metrics import Reporter
from eagle3.target.info import TargetInfo
from eagle3.training.frozen import Frozen, initial_drafter
from eagle3.training.job import Job
from eagle3.training.machine import Machine

TRAINED, UNTRAINED = "eval", "eval/untrained"


def evaluate_chain(job: Job, machine: Machine, reporter: Reporter) -> dict[str, Any]:
    """`run_chains` of a job's drafter."""
    if job.drafter is None:
        raise ConfigError("The job names no drafter to evaluate.")
    return run_chains(job.config, job.target, job.drafter, job.prompts, job.out, machine, reporter)


def _answers(
    cfg: Config, folder: Path, vocab_size: int, prompts: list[Prompt], reporter: Reporter
) -> dict[str, list[int]]:
    """What each prompt was answered, by `Prompt.asked`; {} where nothing is followed.

    Raises DataError where one was not, or its answer is none of this target or longer than answers may be.
    """
    if cfg.evaluate.follow is None:
        return {}
    served = Path(cfg.evaluate.follow)
    replies = greedy_replies(served, name_of(cfg.evaluate.drafts[0]))
    lacking = [prompt for prompt in prompts if prompt.asked not in replies]
    if lacking:
        raise DataError(
            f"{served} has no answer to {lacking[0].set}/{lacking[0].key}, token for token ({len(lacking)} of "
            f"{len(prompts)} prompts); give evaluate.prompts, evaluate.limit, target and chat template as they were "
            "when it was served, or fewer prompts"
        )
    answers = {prompt.asked: replies[prompt.asked].output_ids for prompt in prompts}
    longest, most = max(map(len, answers.values())), cfg.evaluate.max_new_tokens
    if longest > most:
        raise DataError(f"{served} has answers of {longest} tokens: give evaluate.max_new_tokens={longest}")
    if (highest := max(max(ids, default=0) for ids in answers.values())) >= vocab_size:
        raise DataError(f"{served} has answers of another target: token {highest} of a vocabulary of {vocab_size}")
    weights = json_or_empty(served / "summary.json").get("eval/drafter_weights")
    if weights not in (None, weights_sha256(folder)):
        reporter.note(f"WARNING: {served} was served with other weights than those of {folder}")
    return answers


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

    `chains.jsonl` beside it has each answer: its tokens, and of each pass of the target what was drafted and accepted;
    `sequences.safetensors` has the sums of each. Answers of the same measurement that are in it are kept.

    Args:
        folder: the drafter's.
        prompts: folder of prepare; None where what the drafter was trained on is not known.

    Raises:
        Eagle3Error: the drafter is not one that a server would serve as trained, or can't be computed with.
    """
    begin = time.perf_counter()
    machine.settle(cfg.seed)
    device, loaded = machine.device, checked(folder, info, cfg.server.python, cfg.layers.boundaries)
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
    steps, most = cfg.evaluate.drafts[0].steps, cfg.evaluate.max_new_tokens
    answers = _answers(cfg, folder, info.vocab_size, sets.prompts, reporter)
    whole = {name: ChainFigures(steps) for name in contenders}
    by_set = {prompt.set: ChainFigures(steps) for prompt in sets.prompts}

    def answer(prompt: Prompt) -> Answered:
        start = time.perf_counter()
        known = answers.get(prompt.asked, [])
        asked = (prompt.input_ids, steps, len(known) or most, sets.end_ids, known)
        chains = [run_chain(target, one, *asked) for one in contenders.values()]
        return Answered(chains[0], chains[1] if len(chains) > 1 else None, time.perf_counter() - start)

    measurement = {
        "drafter": drafter_sha256(folder),
        "target": info.fingerprint,
        "computed": [str(device.type), str(dtype)],
        "asked": [steps, most, sets.end_ids],
        "contenders": [*contenders, cfg.seed],
        "followed": [*answers.items()],
    }
    with ChainJournal(out, measurement, sets.prompts) as journal:
        kept = len(journal.answers)
        spent = sum(answered.seconds for answered in journal.answers.values())
        if kept:
            reporter.note(f"{kept} of {len(sets.prompts)} prompts were answered before")
            reporter.progress(kept, len(sets.prompts), unit="prompts")  # the pace is that of the others
        for prompt in sets.prompts:
            if is_new := (prompt.set, prompt.key) not in journal.answers:
                journal.add(prompt, answer(prompt))
            answered = journal.answers[prompt.set, prompt.key]
            whole[TRAINED].add(answered.trained)
            by_set[prompt.set].add(answered.trained)
            if answered.untrained is not None:
                whole[UNTRAINED].add(answered.untrained)
            if is_new:
                length = round(whole[TRAINED].accept_length, 3)
                reporter.progress(len(journal.answers), len(sets.prompts), unit="prompts", accept_length=length)
        measured = [journal.answers[prompt.set, prompt.key].trained for prompt in sets.prompts]
    counts = counts_of(sets.prompts, measured, steps)
    counts.save(out)
    summary: dict[str, Any] = {"eval/kind": "chain", "eval/sequences": len(sets.prompts), **counts.metrics(TRAINED)}
    summary |= sets.unasked_figures()
    for name, figures in whole.items():
        summary |= figures.metrics(name)
        reporter.note(f"{name}: accept length {figures.accept_length:.3f} of real drafts, {len(sets.prompts)} prompts")
    summary |= {f"eval/{name}/accept_length": figures.accept_length for name, figures in by_set.items()}
    if cfg.evaluate.follow is not None:
        found = agreement(Path(cfg.evaluate.follow), out, name_of(cfg.evaluate.drafts[0]))
        summary |= found.metrics()
        reporter.note(str(found))
    if cfg.evaluate.drafter is not None:
        summary |= training_figures(sets.training_known, sets.trained_on)
    summary |= {"eval/steps": steps, "eval/boundaries": ",".join(map(str, loaded.boundaries))}
    summary["eval/seconds"] = time.perf_counter() - begin + spent
    reporter.log({k: v for k, v in summary.items() if not isinstance(v, str)}, step=len(sets.prompts))
    write_json(out / "summary.json", summary)
    return summary
