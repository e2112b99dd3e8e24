"""A drafter, served on a GPU: acceptance, tokens/s and speed-up over no speculation, beside two checks of the measure.

    python bench/serve.py TARGET DRAFTER --out OUT --prepared artifacts/prepare/FINGERPRINT
    python bench/serve.py TARGET THEIRS --out OUT evaluate.prompts=[chat,code] target.trust_remote_code=true

OUT/{served.md,summary.json,loads.jsonl} are as `evaluate=served` writes them (docs/serving.md). Then OUT/check.json:

    untrained   the drafter's shape with random weights, served: its accept length must be 1.0, or the measure flatters
    chain       the same prompts and drafts without a server: its accept length must be the served one's within 2%

Overrides are those of run.py. All servers run side by side and share the GPU; `evaluate.beside=false` starts each anew.
For SmolLM2-135M with the shipped grid, 40 prompts and 3 rounds this should take under 10 minutes on an H200.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from eagle3.config.load import PROJECT, load, register
from eagle3.config.schema import Config
from eagle3.data.json_file import write_json
from eagle3.drafter.export import export_drafter
from eagle3.drafter.load import LoadedDrafter
from eagle3.drafter.model import Drafter
from eagle3.evaluation.chain import ChainDrafter, ChainFigures, run_chain
from eagle3.evaluation.figures import cells_of
from eagle3.evaluation.forward import TransformersTarget
from eagle3.evaluation.load import Load
from eagle3.evaluation.open import checked
from eagle3.evaluation.prompts import load_prompts
from eagle3.evaluation.served import LOADS, PAGE, name_of, run_served
from eagle3.server.arguments import installed
from eagle3.target.info import TargetInfo, read_info
from eagle3.tracking.console import ConsoleReporter
from eagle3.training.frozen import Frozen

SHARE = 0.2
"""Of the GPU's free memory that each server takes, beside the others."""


def config_of(target: Path, prepared: Path | None, overrides: list[str]) -> Config:
    given = [
        "target=local",
        f"target.path={target}",
        f"target.name={target.name}",
        "dataset=jsonl",
        "dataset.path=none.jsonl",  # nothing is prepared here
        "evaluate=served",
        "evaluate.beside=true",
        f"+server.flags.serving.mem_fraction_static={SHARE}",
    ]
    if prepared is None:
        given.append("evaluate.prompts=[chat,code,math,summary]")
    register()
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        return load(compose("config", [*given, *overrides]))


def untrained(cfg: Config, info: TargetInfo, loaded: LoadedDrafter, folder: Path) -> None:
    """The drafter's folder again, with random weights."""
    drafter = Drafter(loaded.drafter.shape)
    drafter.reset(torch.Generator().manual_seed(cfg.seed))
    version = installed(cfg.server.python).version
    export_drafter(drafter, loaded.draft_ids, loaded.boundaries, info, folder, version)


def served_length(out: Path, name: str, concurrency: int) -> float:
    """Greedy accept length of a setting."""
    loads = [Load.of(json.loads(line)) for line in (out / LOADS).read_text(encoding="utf-8").splitlines()]
    cells = [c for c in cells_of(loads) if (c.server, c.temperature, c.concurrency) == (name, 0.0, concurrency)]
    return cells[0].accept_length


def chain_length(
    cfg: Config, info: TargetInfo, loaded: LoadedDrafter, prepared: Path | None, steps: int, reporter: ConsoleReporter
) -> float:
    """The same prompts, drafts and answers in transformers, in bfloat16."""
    device = torch.device("cuda" if cfg.server.device == "cuda" else "cpu")
    sets = load_prompts(cfg, info, prepared, reporter)
    target = TransformersTarget(info, loaded.boundaries, device, torch.bfloat16, cfg.target.trust_remote_code)
    frozen = Frozen.load(info, loaded.draft_ids).to(device)
    embedding = frozen.embedding if loaded.embedding is None else loaded.embedding.to(device)
    drafter = ChainDrafter(loaded.drafter.to(device), embedding, frozen.draft_ids, torch.bfloat16)
    figures = ChainFigures(steps)
    for done, prompt in enumerate(sets.prompts, 1):
        figures.add(run_chain(target, drafter, prompt.input_ids, steps, cfg.evaluate.max_new_tokens, sets.end_ids))
        reporter.progress(done, len(sets.prompts), unit="prompts", accept_length=round(figures.accept_length, 3))
    return figures.accept_length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the model's folder")
    parser.add_argument("drafter", type=Path, help="the drafter's folder, for SGLang")
    parser.add_argument("overrides", nargs="*", help="as for run.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prepared", type=Path, help="folder of the prepare stage that the drafter was trained on")
    parser.add_argument("--no-checks", action="store_true", help="neither untrained nor chain")
    args = parser.parse_args()

    cfg = config_of(args.target.resolve(), args.prepared, args.overrides)
    info = read_info(args.target, text_prefix=cfg.target.text_prefix, trust_remote_code=cfg.target.trust_remote_code)
    out, reporter = args.out.resolve(), ConsoleReporter()
    out.mkdir(parents=True, exist_ok=True)
    with reporter.stage("serve"):
        run_served(cfg, info, args.drafter.resolve(), args.prepared, out, reporter, out / "logs")
    if not args.no_checks:
        check(cfg, info, args.drafter.resolve(), args.prepared, out, reporter)
    reporter.close()
    print((out / PAGE).read_text(encoding="utf-8"))


def check(
    cfg: Config, info: TargetInfo, folder: Path, prepared: Path | None, out: Path, reporter: ConsoleReporter
) -> None:
    """Writes OUT/check.json, and prints it."""
    loaded = checked(folder, info, cfg.server.python)
    chained = next((draft for draft in cfg.evaluate.drafts if draft.topk == 1), None)
    found: dict[str, Any] = {}
    with reporter.stage("check"):
        plain = replace(cfg.evaluate, drafts=cfg.evaluate.drafts[:1], rounds=1, temperatures=[0.0], concurrency=[1])
        untrained(cfg, info, loaded, out / "untrained")
        again = out / "untrained-served"
        again.mkdir(exist_ok=True)
        once = replace(cfg, evaluate=plain)
        run_served(once, info, out / "untrained", prepared, again, reporter, out / "logs")
        found["untrained_accept_length"] = served_length(again, name_of(plain.drafts[0]), 1)
        if chained is not None and 0.0 in cfg.evaluate.temperatures:
            served = served_length(out, name_of(chained), min(cfg.evaluate.concurrency))
            chain = chain_length(cfg, info, loaded, prepared, chained.steps, reporter)
            found |= {"served_accept_length": served, "chain_accept_length": chain, "chain_over_served": chain / served}
    write_json(out / "check.json", found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
