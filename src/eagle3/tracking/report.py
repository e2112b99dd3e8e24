"""The report of a run: `report/{summary.json, report.md, *.png}`, and the table that ends it on the terminal."""

import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagle3.data.manifest import quantisation_text
from eagle3.evaluation.sequences import FILE as SEQUENCES
from eagle3.files.json_file import write_json
from eagle3.tracking.plots import write_plots
from eagle3.tracking.results import proof_texts
from eagle3.tracking.samples import sample_section
from eagle3.tracking.summary import ReportInputs, Results, StageRecord, replay_command, serve_command
from eagle3.units import acceptances, counted, duration, quantity, size

__all__ = ["ReportInputs", "StageRecord", "final_table", "write_report"]

_CAPTIONS = {
    "acceptance": "Share of held-out positions where the drafter's token is the target's, by draft token.",
    "accept_length": "Simulated accept length while training: tokens that one verification by the target yields.",
    "loss": "Training and held-out loss.",
    "lengths": "Tokens a conversation, after the chat template.",
    "throughput": "Tokens a second over the time of the stage.",
}

_KINDS = {
    "simulated": "on held-out conversations (simulated)",
    "chain": "of real drafts, without a server, on prompts that it was not trained on",
    "served": "served",
}
"""What is said of an accept length, by `evaluate.kind`."""
SERVED = "served.md"
"""Beside an evaluation's summary where it was served."""

_EXPLAINED = (
    "Measured on {}, against the target's own hidden states. **Acceptance** is the share "
    "of draft tokens that are the target's choice where all earlier ones were; **accuracy** is the share in any case. "
    "The accept length is 1 + a₁ + a₁a₂ + ... over the acceptances."
)

_SPREAD = (
    "± is one standard deviation over 2,000 draws of the conversations that it was measured on. Another seed of the "
    "training may differ by more."
)


def write_report(run_dir: Path, inputs: ReportInputs) -> Path:
    """Writes `run_dir/report/` and returns that folder; works when only some stages ran (until=extract)."""
    folder = run_dir / "report"
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(inputs)
    pictures = write_plots({record.name: record.folder for record in inputs.stages}, folder)
    write_json(folder / "summary.json", results.flat())
    if "evaluate" in results.stages and (counts := results.stages["evaluate"].folder / SEQUENCES).is_file():
        shutil.copy2(counts, folder / SEQUENCES)  # so that run folders alone can be compared
    page = "\n".join(_page(run_dir, results, {path.stem for path in pictures})) + "\n"
    page = page.replace("\n\n\n", "\n\n")
    (folder / "report.md").write_text(page, encoding="utf-8")
    return folder


def _page(run_dir: Path, results: Results, pictures: set[str]) -> Iterable[str]:
    inputs = results.inputs
    yield f"# {inputs.cfg.name}: {_title(results)}\n"
    yield _verdict(results) + "\n"
    if results.trained:
        yield "## Result\n"
        yield from _markdown(("draft token", *map(str, range(1, 1 + _steps(results)))), _result_rows(results))
        yield f"\n{_EXPLAINED.format(_asked(results))}\n" if inputs.cfg.evaluate.kind == "simulated" else ""
        yield f"\n{_SPREAD}\n" if results.trained.spread is not None else ""
    if page := _served(results):
        yield f"\n## Served\n\n{page}"
    yield from _pictures(pictures, "acceptance", "accept_length", "loss")
    if "train" in results.stages:
        yield from sample_section(results.stages["train"])
    yield "## What was run\n"
    yield from _markdown(("", ""), _setup_rows(results))
    if results.prepare or results.manifest:
        yield "\n## Data\n"
        yield from _markdown(("", ""), _data_rows(results))
        yield ""
        yield from _pictures(pictures, "lengths")
    yield "\n## Time\n"
    yield from _markdown(("stage", "time", "tokens/s", "artifact"), _time_rows(results))
    yield ""
    yield from _pictures(pictures, "throughput")
    if inputs.drafter is not None:
        yield "## Serve the drafter\n"
        yield f"On a GPU, with SGLang:\n\n```bash\n{serve_command(inputs.cfg, inputs.target, inputs.drafter)}\n```\n"
    yield "## Repeat it\n"
    yield f"```bash\n{replay_command(run_dir)}\n```\n"
    yield from _markdown(("made with", ""), _version_rows(inputs.provenance))


def _served(results: Results) -> str:
    """The page of a served evaluation; empty without one."""
    file = results.stages["evaluate"].folder / SERVED if "evaluate" in results.stages else None
    return file.read_text(encoding="utf-8") if file is not None and file.is_file() else ""


def _title(results: Results) -> str:
    target = results.inputs.target.get("name", results.inputs.cfg.target.name)
    if (given := results.given) is not None:
        return f"the drafter {'/'.join(given.parts[-2:])} on {target}"
    kinds = {"train": f"a drafter for {target}", "extract": f"hidden states of {target}"}
    return next((text for stage, text in kinds.items() if stage in results.stages), f"prompts for {target}")


def _asked(results: Results) -> str:
    if results.training_known:
        return "conversations kept from training"
    return "held-out conversations, some of which the drafter may have been trained on"


def _verdict(results: Results) -> str:
    trained, untrained = results.trained.accept_length, results.untrained.accept_length
    if trained is not None:
        before = f"; untrained, it was {untrained:.2f}" if untrained is not None else ""
        kind = results.inputs.cfg.evaluate.kind
        if page := _served(results):
            return page.partition("\n\n")[0]
        followed = "" if results.followed is None else f" {results.followed}."
        return f"**Accept length {results.trained.shown}** {_KINDS[kind]}{before}.{followed}"
    last = results.inputs.stages[-1].name if results.inputs.stages else "nothing"
    return f"The run ended after the stage `{last}` (`until={results.inputs.cfg.until}`)."


def _steps(results: Results) -> int:
    return max(len(found.conditional) or len(found.accuracy) for found in (results.trained, results.untrained))


def _result_rows(results: Results) -> list[tuple[str, ...]]:
    rows = []
    for who, found in (("measured" if results.given else "trained", results.trained), ("untrained", results.untrained)):
        if found.conditional:
            rows.append((f"acceptance, {who}", *acceptances(found.conditional)))
        if found.accuracy:
            rows.append((f"accuracy, {who}", *(f"{share:.1%}" for share in found.accuracy)))
    return rows


def _setup_rows(results: Results) -> list[tuple[str, str]]:
    inputs, cfg, target = results.inputs, results.inputs.cfg, results.inputs.target
    rows = [
        ("target", f"{target.get('name', cfg.target.name)}, from {target.get('source', cfg.target.path)}"),
        ("boundaries", f"{', '.join(map(str, results.boundaries))} (residual stream entering these layers), and final"),
    ]
    if "extract" in results.stages:
        version = results.manifest.get("sglang_version") or inputs.provenance.get("versions", {}).get("sglang")
        gpus = f" x {cfg.server.tp}" if cfg.server.tp > 1 else ""
        rows.append(("server", f"SGLang {version}, {cfg.server.device}{gpus}, NCCL profile {cfg.nccl.extraction.name}"))
    if "train" in results.stages:
        rows.append(("drafter", _drafter(results)))
        length = f"{cfg.trainer.max_steps} steps" if cfg.trainer.max_steps else counted(cfg.trainer.epochs, "epoch")
        batch = cfg.trainer.tokens_per_batch * cfg.trainer.accumulate * cfg.trainer.devices * cfg.trainer.nodes
        rows.append(
            (
                "training",
                f"{length} of {quantity(batch)} tokens a step, loss {cfg.loss.kind}, {cfg.loss.ttt_steps} TTT steps, "
                f"AdamW at {cfg.optim.lr:g}, {cfg.trainer.precision}, seed {cfg.seed}",
            )
        )
    if too_long := results.too_long:
        rows.append(("left out", f"{counted(too_long, 'prompt')}, too long for the target's context"))
    if results.given is not None:
        rows.append(("drafter", f"{results.given}, measured as it was given"))
        rows += [("trained on", results.training)] if results.training is not None else []
    return rows


def _drafter(results: Results) -> str:
    cfg, made = results.inputs.cfg.drafter, results.drafter_config
    hidden = made.get("hidden_size") or cfg.hidden_size
    heads = made.get("num_attention_heads") or cfg.num_heads
    draft = made.get("draft_vocab_size") or cfg.draft_vocab_size
    parts = [counted(made.get("num_hidden_layers") or cfg.num_layers, "layer")]
    parts += [f"hidden size {hidden:,}"] if hidden else []
    parts += [f"{heads} heads"] if heads else []
    parts += [f"draft vocabulary {draft:,}"]
    parts += ["EAGLE-3.1 (fc_norm)"] if cfg.fc_norm else []
    return ", ".join(parts)


def _data_rows(results: Results) -> list[tuple[str, str]]:
    prepare, manifest, rows = results.prepare, results.manifest, []
    if prepare:
        counts = prepare.get("counts", {})
        skipped = counts.get("skipped") or {}
        rows.append(("source", str(prepare.get("source", results.inputs.cfg.dataset.path))))
        text = f"{quantity(counts.get('kept', 0))} of {quantity(counts.get('conversations', 0))} kept"
        if counts.get("truncated"):
            text += f"; {quantity(counts['truncated'])} cut at {quantity(results.inputs.cfg.dataset.max_length)} tokens"
        rows.append(("conversations", text + "".join(f"; {quantity(n)} left out: {why}" for why, n in skipped.items())))
        tokens, responses = prepare.get("tokens", 0), prepare.get("response_tokens", 0)
        share = f" ({responses / tokens:.0%})" if tokens else ""
        rows.append(("tokens", f"{quantity(tokens)}, of them {quantity(responses)} in responses{share}"))
        held = prepare.get("held_out") or {}
        if held:
            text = f"{quantity(held.get('sequences', 0))} conversations, {quantity(held.get('tokens', 0))} tokens"
            rows.append(("held out", text))
    if manifest:
        states, shards = len(manifest.get("states", [])), counted(len(manifest.get("shards", [])), "shard")
        text = f"{size(manifest.get('bytes', 0))} in {shards}, {states} states a token"
        rows.append(("hidden states", text))
        bad = manifest.get("quarantined") or {}
        rows.append(("quarantined", counted(len(bad), "sequence") if bad else "none"))
        rows += [("proof", text) for text in proof_texts(manifest.get("proof") or {})]
        if lost := manifest.get("quantisation"):
            rows.append((f"stored as {manifest['dtype']}", quantisation_text(lost)))
    return rows


def _time_rows(results: Results) -> list[tuple[str, str, str, str]]:
    rows = []
    for line in results.timings():
        spent = "" if line.seconds is None else duration(line.seconds)
        if line.reused:
            spent = f"reused (made in about {spent})" if spent else "reused"
        rows.append((line.name, spent, "" if line.rate is None else quantity(round(line.rate)), f"`{line.folder}`"))
    return rows


def _version_rows(provenance: dict[str, Any]) -> list[tuple[str, str]]:
    git = provenance.get("git") or {}
    commit = f"{git['commit']}{', with local changes' if git.get('dirty') else ''}" if git.get("commit") else "unknown"
    rows = [("code", commit), ("Python", str(provenance.get("python", "")))]
    rows += [(name, str(version)) for name, version in (provenance.get("versions") or {}).items() if version]
    return [row for row in rows if row[1]]


def _markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterable[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"


def _pictures(there: set[str], *names: str) -> Iterable[str]:
    for name in names:
        if name in there:
            yield f"![{_CAPTIONS[name]}]({name}.png)\n"


def final_table(run_dir: Path, inputs: ReportInputs) -> RenderableType:
    """What the terminal shows last: the results, and where everything is."""
    results = Results(inputs)
    table = Table(title=f"{inputs.cfg.name}: {_title(results)}", title_justify="left", title_style="bold")
    table.add_column("", style="dim")
    steps = _steps(results)
    if results.trained:
        table.add_column("accept length", justify="right", style="bold")
        for step in range(steps):
            table.add_column(f"token {step + 1}", justify="right")
        drafters = [("untrained", results.untrained)] if results.untrained else []
        for who, found in (*drafters, ("measured" if results.given else "trained", results.trained)):
            table.add_row(who, found.shown, *acceptances(found.conditional))
    lines = [
        f"{line.name} {'reused' if line.reused else duration(line.seconds or 0)}"
        + (f" ({quantity(round(line.rate))} tokens/s)" if line.rate and not line.reused else "")
        for line in results.timings()
    ]
    places = [("stages", ", ".join(lines)), ("report", str(run_dir / "report" / "report.md"))]
    if results.followed is not None:
        places.insert(0, ("followed", str(results.followed)))
    if (drafter := inputs.drafter or results.given) is not None:
        places.append(("drafter", str(drafter)))
    places += [("dataset", str(record.folder)) for record in inputs.stages if record.name == "extract"]
    offline = sorted((run_dir / "wandb").glob("offline-run-*"))
    places += [("W&B", f"wandb sync {shlex.quote(str(path))}") for path in offline]
    places += [("run", str(run_dir)), ("repeat", replay_command(run_dir))]
    # Plain lines, not cells: a path that a table folded can't be copied.
    where = [Text.assemble((f"{name:<9}", "dim"), text) for name, text in places]
    return Group(*([table] if results.trained else []), *where)
