"""`evaluate=served`: the target with and without the drafter, on the same flags, in turn, under the same loads."""

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3.config.schema import Config, DraftSetting
from eagle3.drafter.capture import not_served
from eagle3.errors import ConfigError, ServerError
from eagle3.evaluation.figures import (
    FAILED,
    NONE,
    UNTRAINED,
    accept_length,
    cells_of,
    counts_of_best,
    name_of,
    so_far,
    summary_of,
)
from eagle3.evaluation.load import FOREVER_S, Load, alive, put_load
from eagle3.evaluation.open import checked
from eagle3.evaluation.prompts import PromptSets, load_prompts
from eagle3.evaluation.recorded import LOADS, Wanted, missing, plan_of, read_loads, record
from eagle3.evaluation.sameness import Difference, Explained, differences, explain
from eagle3.evaluation.served_page import page
from eagle3.evaluation.servers import Servers
from eagle3.evaluation.trained_on import training_figures, weights_sha256
from eagle3.evaluation.untrained import export_untrained
from eagle3.files.json_file import write_json
from eagle3.metrics import Reporter
from eagle3.server.client import Client
from eagle3.server.flags import QUIET_FLAGS, ServerCommand, server_command
from eagle3.server.patches import dump_versions
from eagle3.target.info import TargetInfo

DIFFERENCES, PAGE = "differences.json", "served.md"


def served_command(
    cfg: Config, target: Path, drafter: Path, draft: DraftSetting | None, capture: Path
) -> ServerCommand:
    """Of the server with these drafts, or without any: the same in everything else.

    Raises ConfigError where the installed SGLang can't do it.
    """
    flags: dict[str, Any] = {"skip_tokenizer_init": True}
    if draft is not None:
        flags |= {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": str(drafter),
            "speculative_num_steps": draft.steps,
            "speculative_eagle_topk": draft.topk,
            "speculative_num_draft_tokens": draft.tokens,
        }
    # One is measured while the others wait: a scheduler that looks for work without a pause takes its core, and heat.
    quiet = QUIET_FLAGS if cfg.evaluate.beside else {}
    command = server_command(cfg, "serving", target, extra=flags, defaults=quiet, capture=capture)
    if not dump_versions().loads_plugins(command.sglang_version):
        raise ConfigError(
            f"server.python: SGLang {command.sglang_version} loads no plugins, so what it captures for a drafter can't "
            f"be read back; use {dump_versions().plugins_since} or newer, or evaluate=simulated"
        )
    return command


def run_served(
    cfg: Config, target: TargetInfo, drafter: Path, prompts: Path | None, out: Path, reporter: Reporter, logs: Path
) -> dict[str, Any]:
    """Measures and writes `summary.json`, `served.md`, `loads.jsonl` (every reply), `sequences.safetensors` (sums of
    each prompt with the best setting) and `differences.json` into `out`. A setting that fails is left out and named.

    Loads that `out` has are kept, and the others measured: it must be the folder of this configuration alone.

    Args:
        prompts: folder of prepare; None where what the drafter was trained on is not known.

    Raises:
        Eagle3Error: the drafter is faulty. ConfigError: the installed SGLang can't serve it.
        ServerError: the server without speculation, or all others, did not start or died; or one captures other
            boundaries than the drafter was trained on.
        DataError: `out` has loads of another evaluation.
    """
    began = time.perf_counter()
    loaded = checked(drafter, target, cfg.server.python, cfg.layers.boundaries)
    sets = load_prompts(cfg, target, prompts, reporter)
    drafts: dict[str, DraftSetting | None] = {NONE: None} | {name_of(draft): draft for draft in cfg.evaluate.drafts}
    commands = {
        name: served_command(cfg, target.path, drafter, draft, out / "capture" / name) for name, draft in drafts.items()
    }
    version = commands[NONE].sglang_version
    if lacking := not_served(loaded.drafter.shape, version):
        raise ConfigError(f"{drafter}: {'; '.join(lacking)}")
    plan = plan_of(cfg.evaluate)
    kept = read_loads(out / LOADS, plan, sets.prompts)
    left = missing(plan, kept)
    if kept:
        reporter.note(_told(plan, kept, left))
    needed = {wanted.server for wanted in left}
    if UNTRAINED in needed:
        export_untrained(loaded, target, out / UNTRAINED, cfg.seed, version)
        of_untrained = (target.path, out / UNTRAINED, cfg.evaluate.drafts[0], out / "capture" / UNTRAINED)
        commands[UNTRAINED] = served_command(cfg, *of_untrained)
    # `none` explains differences at the end, whatever is still to be measured.
    commands = {name: command for name, command in commands.items() if name in needed or name == NONE}
    drafted = {load.server for load in kept} & drafts.keys() - {NONE}
    servers = Servers(cfg, commands, loaded.boundaries, sets, logs, reporter, drafted)
    with servers.running():
        loads = measure(cfg, servers, sets, left, kept, out, reporter)
        explained, noise = compare(cfg, servers, sets, loads)
    write_json(out / DIFFERENCES, [e.row() for e in explained])
    cells = cells_of(loads)
    summary = {
        **summary_of(cells),
        "eval/sequences": len(sets.prompts),
        **sets.unasked_figures(),
        "eval/drafter_weights": weights_sha256(drafter),
        "eval/boundaries_read_back": ",".join(map(str, loaded.boundaries)),
        "eval/loads_kept": len(kept),
        # Not what the stopped evaluation took beside its loads: the starts of its servers, and the load it lost.
        "eval/seconds": time.perf_counter() - began + sum(load.seconds for load in kept),
    }
    counts = counts_of_best(cells, loads, sets.prompts)
    if counts is not None:
        counts.save(out)
        summary |= counts.metrics("eval")
    if 0.0 in cfg.evaluate.temperatures:
        summary |= {
            "eval/greedy_differences": len(explained),
            "eval/greedy_unexplained": sum(not e.is_tie for e in explained),
            "eval/greedy_differences_without": noise,
        }
    if cfg.evaluate.drafter:
        summary |= training_figures(sets.training_known, sets.trained_on)
    for load in loads:
        if load.server == UNTRAINED:
            summary["eval/untrained/accept_length"] = accept_length(load.replies)
    if servers.failed:
        summary[FAILED] = ", ".join(servers.failed)
        summary |= {f"serve/{name}/failure": _brief(error) for name, error in servers.failed.items()}
    (out / PAGE).write_text(page(cells, summary, explained), encoding="utf-8")
    write_json(out / "summary.json", summary)
    reporter.log({k: v for k, v in summary.items() if not isinstance(v, str)}, step=len(loads))
    for line in (out / PAGE).read_text(encoding="utf-8").split("\n\n")[:2]:
        reporter.note(" ".join(line.replace("*", "").split()))
    return summary


def _told(plan: Sequence[Wanted], kept: Sequence[Load], left: Sequence[Wanted]) -> str:
    before = {Wanted.of(load) for load in kept}
    again = len(before & {*left})
    told = f"{len(before)} of {len(plan)} loads were measured before"
    return f"{told}; {again} of them, without speculation, again for the rest of their round" if again else told


def measure(
    cfg: Config,
    servers: Servers,
    sets: PromptSets,
    left: Sequence[Wanted],
    kept: Sequence[Load],
    out: Path,
    reporter: Reporter,
) -> list[Load]:
    """The loads kept, and after them every one that is left, in its order; each is recorded as it comes.

    Those of a server that failed are left out. What a stop leaves is told.
    """
    loads = [*kept]
    try:
        _measure(cfg, servers, sets, left, loads, out, reporter)
    except BaseException:
        if (found := so_far(loads)) is not None:
            reporter.note(found)
        raise
    return loads


def _measure(
    cfg: Config,
    servers: Servers,
    sets: PromptSets,
    left: Sequence[Wanted],
    loads: list[Load],
    out: Path,
    reporter: Reporter,
) -> None:
    """Appends to `loads`."""
    with (out / LOADS).open("ab") as file:
        for number, wanted in enumerate(left, 1):
            if wanted.server in servers.failed:
                continue
            given = (sets.prompts, sets.end_ids, wanted.temperature, wanted.concurrency, cfg.evaluate.max_new_tokens)
            try:
                load = asyncio.run(put_load(servers.use(wanted.server), wanted.server, wanted.round, *given))
            except ServerError as error:
                servers.give_up(wanted.server, error)
                continue
            record(file, load)
            loads.append(load)
            if wanted.server not in (NONE, UNTRAINED):
                servers.drafted.add(wanted.server)
            total = len(loads) + sum(later.server not in servers.failed for later in left[number:])
            shown = {"server": wanted.server, "tokens_per_s": round(load.rate, 1)}
            reporter.progress(len(loads), total, unit="loads", **shown)


def _brief(error: ServerError) -> str:
    """One line: what happened, and the last error of the server's log."""
    first, *log = str(error).splitlines()
    why = next((line.strip() for line in reversed(log) if re.search(r"Error|Exception|error:", line)), None)
    return f"{first} ({why})" if why else first


def compare(cfg: Config, servers: Servers, sets: PromptSets, loads: list[Load]) -> tuple[list[Explained], int]:
    """Greedy answers with drafts against those without, one request at a time where that was measured.

    Returns:
        (every difference, explained; in how many answers the target differs from itself when it is measured again).
    """
    greedy = [load for load in loads if load.temperature == 0 and load.server != UNTRAINED]
    if not greedy:
        return [], 0
    least = min(cfg.evaluate.concurrency)
    firsts: dict[str, list[Load]] = {}
    for load in greedy:
        if load.concurrency == least:
            firsts.setdefault(load.server, []).append(load)
    own = firsts[NONE][0]
    noise = max((len(differences(own, load)) for load in firsts[NONE][1:]), default=0)
    found = [d for name, group in firsts.items() if name != NONE for d in differences(own, group[0])]
    return (_explain(servers, found, own, sets) if found else []), noise


def _explain(servers: Servers, found: list[Difference], own: Load, sets: PromptSets) -> list[Explained]:
    server = servers.use(NONE)

    async def ask() -> list[Explained]:
        async with Client(server.url, 1, timeout_s=FOREVER_S) as client:
            return await alive(server, explain(client, found, own, sets.prompts))

    return asyncio.run(ask())
