"""A drafter, served on a GPU: acceptance, tokens/s and speed-up over no speculation, and whether the measure is right.

    python bench/serve.py TARGET DRAFTER --out OUT --prepared artifacts/prepare/FINGERPRINT
    python bench/serve.py TARGET THEIRS --out OUT evaluate.prompts=[chat,code] target.trust_remote_code=true

OUT/{served.md,summary.json,loads.jsonl} are as `evaluate=served` writes them (docs/serving.md), with a drafter of
random weights beside it, whose accept length must be 1.0. Then OUT/chain: the greedy answers followed without a server,
by `evaluate=chain evaluate.follow=OUT`; the accept length must be the served one's within 2%.

Stopped or killed, the same command goes on; finished, it says the same again: give another OUT to measure anew. With
another drafter, other overrides, another SGLang or machine, OUT is begun anew.

Overrides are those of run.py. All servers run side by side and share the GPU; `evaluate.beside=false` starts each anew.
"""

import argparse
import dataclasses
import json
import socket
import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from eagle3.config.explain import explain
from eagle3.config.load import PROJECT, load, register
from eagle3.config.schema import Config
from eagle3.errors import EXIT_BAD_CONFIG, EXIT_DONE, EXIT_INTERRUPTED, ConfigError, Eagle3Error
from eagle3.evaluation.chain_run import run_chains
from eagle3.evaluation.recorded import LOADS
from eagle3.evaluation.served import PAGE, run_served
from eagle3.evaluation.sets import require_sets
from eagle3.evaluation.trained_on import drafter_sha256
from eagle3.files.json_file import json_or_empty, write_json
from eagle3.metrics import JsonlReporter
from eagle3.server.arguments import installed
from eagle3.target.info import TargetInfo, read_info
from eagle3.tracking.console import ConsoleReporter, FanOut
from eagle3.training.machine import Machine

MEASUREMENT = "measurement.json"
"""In OUT: what its loads are of."""
TOKENS = 262144
"""In the cache of each server, so that all fit beside each other."""


def config_of(target: Path, prepared: Path | None, overrides: list[str]) -> Config:
    given = [
        "target=local",
        f"target.path={target}",
        f"target.name={target.name}",
        "dataset=jsonl",
        "dataset.path=none.jsonl",  # nothing is prepared here
        "evaluate=served",
        "evaluate.beside=true",
        "+server.flags.serving.mem_fraction_static=0.9",
        f"+server.flags.serving.max_total_tokens={TOKENS}",
    ]
    if prepared is None:
        given.append("evaluate.prompts=[chat,code,math,summary]")
    register()
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        return load(compose("config", [*given, *overrides]))


def require_gpus(cfg: Config) -> None:
    """Before a server is started. Raises ConfigError."""
    import torch

    if (there := torch.cuda.device_count()) < cfg.server.tp:
        raise ConfigError(
            f"server.tp: {cfg.server.tp}, and torch finds {there} GPUs here; SGLang serves drafters on GPUs only. "
            "`python run.py ... evaluate=chain evaluate.drafter=FOLDER` measures the same acceptance on a CPU"
        )


def main() -> int:
    """The exit code (errors.py)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the model's folder")
    parser.add_argument("drafter", type=Path, help="the drafter's folder, for SGLang")
    parser.add_argument("overrides", nargs="*", help="as for run.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prepared", type=Path, help="folder of the prepare stage that the drafter was trained on")
    args = parser.parse_intermixed_args()
    try:
        measure(args)
    except Eagle3Error as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (HydraException, OmegaConfBaseException) as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return EXIT_BAD_CONFIG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE


def measure(args: argparse.Namespace) -> None:
    cfg = config_of(args.target.resolve(), args.prepared, args.overrides)
    require_sets(cfg.evaluate.prompts)
    require_gpus(cfg)
    info = read_info(args.target, text_prefix=cfg.target.text_prefix, trust_remote_code=cfg.target.trust_remote_code)
    out, drafter, reporter = args.out.resolve(), args.drafter.resolve(), ConsoleReporter()
    out.mkdir(parents=True, exist_ok=True)
    begin(out, measurement(cfg, info, drafter, args.prepared))
    with reporter.stage("serve"):
        run_served(cfg, info, drafter, args.prepared, out, reporter, out / "logs")
    with reporter.stage("chain"):
        compare(cfg, info, drafter, args.prepared, out, reporter)
    reporter.close()
    print((out / PAGE).read_text(encoding="utf-8"))


def measurement(cfg: Config, info: TargetInfo, drafter: Path, prepared: Path | None) -> dict[str, Any]:
    """All that OUT's figures depend on."""
    return {
        "config": dataclasses.asdict(cfg),
        "target": info.fingerprint,
        "drafter": drafter_sha256(drafter),
        "prepared": None if prepared is None else str(prepared.resolve()),
        "sglang": installed(cfg.server.python).version,
        "machine": socket.gethostname(),
    }


def begin(out: Path, wanted: dict[str, Any]) -> None:
    """Keeps the loads of a measurement that was stopped; those of another go."""
    known = json_or_empty(out / MEASUREMENT)
    if known != json.loads(json.dumps(wanted, default=str)):
        (out / LOADS).unlink(missing_ok=True)
        write_json(out / MEASUREMENT, wanted)


def compare(
    cfg: Config, info: TargetInfo, drafter: Path, prepared: Path | None, out: Path, reporter: ConsoleReporter
) -> None:
    """Writes OUT/chain; nothing without a greedy setting of topk 1."""
    setting = next((draft for draft in cfg.evaluate.drafts if draft.topk == 1), None)
    if setting is None or 0.0 not in cfg.evaluate.temperatures:
        return
    evaluate = dataclasses.replace(cfg.evaluate, kind="chain", drafts=[setting], untrained=False, follow=str(out))
    trainer = dataclasses.replace(cfg.trainer, accelerator="gpu" if cfg.server.device == "cuda" else "cpu")
    changed = dataclasses.replace(cfg, evaluate=evaluate, trainer=trainer)
    chained = out / "chain"
    chained.mkdir(exist_ok=True)
    own = JsonlReporter(chained / "metrics.jsonl")
    machine = Machine.of(trainer, devices=1)
    run_chains(changed, info, drafter, prepared, chained, machine, FanOut(reporter, own))
    own.close()


if __name__ == "__main__":
    sys.exit(main())
