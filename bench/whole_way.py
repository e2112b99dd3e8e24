"""From prompts to a served speed-up on one GPU, step by step; the same command continues a step that was stopped.

    python bench/whole_way.py OUT                          everything, for SmolLM2-135M-Instruct
    python bench/whole_way.py OUT --steps prepare,extract  some of it
    python bench/whole_way.py OUT --limit-s 500 target.path=/models/mine target.name=mine trainer.epochs=4

| step | does | prints |
| --- | --- | --- |
| prompts | distinct prompts from patterns (bench/prompts.py), none of those measured with | how many |
| prepare | the target writes more prompts and answers all, through its server | response tokens, tokens/s |
| extract | hidden states, proven right | tokens, tokens/s |
| train | a drafter; its acceptance simulated on held-out conversations | seconds, tokens/s, accept length |
| serve | served with and without it, at several settings; random weights beside it | speed-up, accept length |
| chain | the same without a server, on chat and held-out prompts | accept length |
| follow | the served answers once more without a server | how far from the served accept length |
| curve | shorter trainings, each with its own schedule | accept length against tokens trained on |
| export | for the installed SGLang and for vLLM, verified | the folders |

Figures go to OUT/figures.json as they come, the curve to OUT/curve.png. Overrides are those of run.py; each step is a
run of `experiment=smollm2_gpu`, so what is finished is reused. `--limit-s` (ten minutes) stops a step, and what it
has done is kept.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3.config.load import PROJECT
from eagle3.files.json_file import json_or_empty, write_json
from eagle3.server.arguments import installed
from eagle3.tracking.results import Stage
from prompts import write_prompts


class Way:
    def __init__(self, out: Path, count: int, shares: list[float], overrides: list[str], limit_s: float) -> None:
        self.out, self.count, self.shares, self.overrides, self.limit_s = out, count, shares, overrides, limit_s

    @property
    def steps(self) -> dict[str, Callable[[], dict[str, Any]]]:
        steps = (self.prompts, self.prepare, self.extract, self.train, self.serve)
        steps += (self.chain, self.follow, self.curve, self.export)
        return {step.__name__: step for step in steps}

    def run(self, name: str, *overrides: str) -> dict[str, Any]:
        """One run of the experiment in OUT/runs/`name`; gives its summary."""
        folder = self.out / "runs" / name
        given = [
            "experiment=smollm2_gpu",
            f"dataset.path={self.out / 'prompts.jsonl'}",
            f"paths.artifacts={self.out / 'artifacts'}",
            f"hydra.run.dir={folder}",
            *overrides,
            *self.overrides,
        ]
        self.call([sys.executable, str(PROJECT / "run.py"), *given], name)
        return json_or_empty(folder / "report" / "summary.json")

    def call(self, argv: list[str], name: str) -> None:
        """Shows what it says, and ends it in order after the limit."""
        print("$", shlex.join(argv), flush=True)
        child = subprocess.Popen(argv)
        try:
            code = child.wait(self.limit_s)
        except subprocess.TimeoutExpired:
            child.terminate()
            child.wait()
            raise SystemExit(f"{name}: not done after {self.limit_s:.0f} s; the same command continues it") from None
        except KeyboardInterrupt:
            child.wait()
            raise
        if code:
            raise SystemExit(f"{name}: ended with {code}; its logs: {self.out / 'runs' / name / 'logs'}")

    def prompts(self) -> dict[str, Any]:
        return write_prompts(self.out / "prompts.jsonl", self.count)

    def prepare(self) -> dict[str, Any]:
        found = self.run("prepare", "until=prepare", "evaluate=simulated")
        folder = Path(json_or_empty(self.out / "runs" / "prepare" / "provenance.json")["artifacts"]["prepare"])
        wanted = ("prepare/answers", "prepare/generated_tokens", "prepare/generated_tokens_per_s")
        series = {name: Stage(folder).series(name, over="minutes") for name in wanted}
        generated = {name: one.y[-1] for name, one in series.items() if one}
        return generated | {name: found[name] for name in ("prepare/tokens", "prepare/response_tokens")}

    def extract(self) -> dict[str, Any]:
        found = self.run("extract", "until=extract", "evaluate=simulated")
        return {name: value for name, value in found.items() if name.startswith("extract/")}

    def train(self) -> dict[str, Any]:
        found = self.run("train", "evaluate=simulated")
        names = ("steps", "tokens", "seconds", "tokens_per_s", "mfu", "draft_vocabulary_coverage")
        wanted = [f"train/{name}" for name in names]
        return {name: value for name, value in found.items() if name in wanted or name.startswith("eval/")}

    def serve(self) -> dict[str, Any]:
        found = self.run("serve")
        print((self.artifact("serve") / "served.md").read_text(encoding="utf-8"))
        return {name: value for name, value in found.items() if name.startswith(("eval/", "serve/"))}

    def chain(self) -> dict[str, Any]:
        found = self.run("chain", "evaluate=chain", "evaluate.prompts=[chat,held_out]", "evaluate.untrained=false")
        return {name: value for name, value in found.items() if name.startswith("eval/")}

    def follow(self) -> dict[str, Any]:
        served = f"evaluate.follow={self.artifact('serve')}"
        found = self.run("follow", "evaluate=chain", "evaluate.untrained=false", served)
        return {name: value for name, value in found.items() if name.startswith(("eval/acc", "eval/followed/"))}

    def artifact(self, name: str) -> Path:
        """The evaluation of a run."""
        return Path(json_or_empty(self.out / "runs" / name / "provenance.json")["artifacts"]["evaluate"])

    def curve(self) -> dict[str, Any]:
        """Each point is a training of its own, its learning rate down to zero at its end."""
        whole = json_or_empty(self.out / "runs" / "train" / "report" / "summary.json")
        steps, points = int(whole["train/steps"]), list[list[float]]()
        for wanted in sorted({max(round(steps * share), 1) for share in self.shares}):
            found = self.run(f"curve-{wanted}", "evaluate=simulated", f"trainer.max_steps={wanted}")
            points.append([found["train/tokens"], found["eval/accept_length"]])
            print(f"{points[-1][0]:>12,.0f} tokens: accept length {points[-1][1]:.3f}", flush=True)
        points.append([whole["train/tokens"], whole["eval/accept_length"]])
        draw(
            points,
            whole["eval/untrained/accept_length"],
            whole["train/tokens"] / whole["train/epoch"],
            self.out / "curve.png",
        )
        return {"curve": points}

    def export(self) -> dict[str, Any]:
        run, version = str(self.out / "runs" / "serve"), installed(None).version
        made = {"sglang": self.out / f"drafter-sglang-{version}", "speculators": self.out / "drafter-speculators"}
        eagle3 = [sys.executable, "-m", "eagle3.cli"]
        for form, folder in made.items():
            more = ["--sglang-version", version] if form == "sglang" else []
            self.call([*eagle3, "export", run, str(folder), "--format", form, *more], "export")
            self.call([*eagle3, "verify", str(folder)], "export")
        return {form: str(folder) for form, folder in made.items()}


def draw(points: list[list[float]], untrained: float, epoch: float, path: Path) -> None:
    """Accept length over tokens trained on, which repeat after one epoch's."""
    import matplotlib as mpl

    from eagle3.tracking.plots import BLUE, GREY, STYLE, new_figure

    with mpl.rc_context(STYLE):
        figure, (axes,) = new_figure(height=3.6)
        axes.semilogx([x for x, _ in points], [y for _, y in points], marker="o", color=BLUE)
        axes.axhline(untrained, color=GREY, linestyle=":")
        axes.axvline(epoch, color=GREY, linestyle="--", linewidth=1)
        axes.text(epoch, axes.get_ylim()[1], " one epoch", va="top", color=GREY)
        axes.set(
            title="Simulated; each point is a training of its own. Dotted: untrained",
            xlabel="tokens trained on, prompts included",
            ylabel="accept length, held out",
        )
        figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("overrides", nargs="*", help="as for run.py")
    parser.add_argument("--steps", default="all", help="names, separated by commas")
    parser.add_argument("--prompts", type=int, default=4000, help="how many, beside those that the target writes")
    parser.add_argument("--shares", default="0.03,0.12,0.4", help="of the whole training, for the curve")
    parser.add_argument("--limit-s", type=float, default=600.0, help="a step's longest time")
    args = parser.parse_intermixed_args()
    out = args.out.resolve()
    shares = [float(share) for share in args.shares.split(",")]
    way = Way(out, args.prompts, shares, args.overrides, args.limit_s)
    wanted = [*way.steps] if args.steps == "all" else args.steps.split(",")
    if unknown := [name for name in wanted if name not in way.steps]:
        parser.error(f"--steps: {', '.join(unknown)} is none of {', '.join(way.steps)}")
    for name in wanted:
        began = time.monotonic()
        found = way.steps[name]() | {"seconds": round(time.monotonic() - began, 1)}
        figures = json_or_empty(out / "figures.json") | {name: found}
        write_json(out / "figures.json", figures)
        shown = {key: value for key, value in found.items() if not key.startswith("serve/s")}
        print(f"== {name}: {json.dumps(shown)}", flush=True)


if __name__ == "__main__":
    main()
