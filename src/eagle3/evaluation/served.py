"""`evaluate=served`: the target with and without the drafter, on the same flags, in turn, under the same loads."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from eagle3.config.schema import Config, DraftSetting
from eagle3.drafter.load import LoadedDrafter
from eagle3.errors import ConfigError, ServerError
from eagle3.evaluation.figures import NONE, cells_of, summary_of
from eagle3.evaluation.load import FOREVER_S, Load, alive, put_load
from eagle3.evaluation.open import checked
from eagle3.evaluation.prompts import PromptSets, load_prompts
from eagle3.evaluation.sameness import Difference, Explained, differences, explain
from eagle3.evaluation.served_page import page
from eagle3.metrics import Reporter
from eagle3.server.client import Client
from eagle3.server.flags import ServerCommand, server_command
from eagle3.server.launch import Server
from eagle3.server.patches import dump_versions
from eagle3.target.info import TargetInfo

LOADS, DIFFERENCES, PAGE = "loads.jsonl", "differences.json", "served.md"
WARM_UP_TOKENS = 16


def name_of(draft: DraftSetting) -> str:
    """In figures and logs: steps, topk, draft tokens."""
    return f"s{draft.steps}k{draft.topk}d{draft.tokens}"


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
    command = server_command(cfg, "serving", target, extra=flags, capture=capture)
    if not dump_versions().loads_plugins(command.sglang_version):
        raise ConfigError(
            f"server.python: SGLang {command.sglang_version} loads no plugins, so what it captures for a drafter can't "
            f"be read back; use {dump_versions().plugins_since} or newer"
        )
    return command


def run_served(
    cfg: Config, target: TargetInfo, drafter: Path, prompts: Path | None, out: Path, reporter: Reporter, logs: Path
) -> dict[str, Any]:
    """Measures and writes `summary.json`, `served.md`, `loads.jsonl` (every reply) and `differences.json` into `out`.

    Args:
        prompts: folder of prepare; None where what the drafter was trained on is not known.

    Raises:
        Eagle3Error: the drafter is faulty. ConfigError: the installed SGLang can't serve it.
        ServerError: a server did not start or died, or captures other boundaries than the drafter was trained on.
    """
    began = time.perf_counter()
    loaded = checked(drafter, target, cfg.server.python)
    sets = load_prompts(cfg, target, prompts, reporter)
    drafts: dict[str, DraftSetting | None] = {NONE: None} | {name_of(draft): draft for draft in cfg.evaluate.drafts}
    commands = {
        name: served_command(cfg, target.path, drafter, draft, out / "capture" / name) for name, draft in drafts.items()
    }
    servers = Servers(cfg, commands, loaded, sets, logs, reporter)
    with servers.running():
        loads = measure(cfg, servers, sets, out, reporter)
        explained, noise = compare(cfg, servers, sets, loads)
    (out / DIFFERENCES).write_text(json.dumps([e.row() for e in explained], indent=1) + "\n", encoding="utf-8")
    cells = cells_of(loads)
    summary = {
        **summary_of(cells),
        "eval/sequences": len(sets.prompts),
        "eval/boundaries_read_back": ",".join(map(str, loaded.boundaries)),
        "eval/seconds": time.perf_counter() - began,
    }
    if 0.0 in cfg.evaluate.temperatures:
        summary |= {
            "eval/greedy_differences": len(explained),
            "eval/greedy_unexplained": sum(not e.is_tie for e in explained),
            "eval/greedy_differences_without": noise,
        }
    (out / PAGE).write_text(page(cells, summary, explained), encoding="utf-8")
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    reporter.log({k: v for k, v in summary.items() if not isinstance(v, str)}, step=len(loads))
    for line in (out / PAGE).read_text(encoding="utf-8").split("\n\n")[:2]:
        reporter.note(" ".join(line.replace("*", "").split()))
    return summary


class Servers:
    """The servers that are measured, started when their turn comes: side by side, or one at a time."""

    def __init__(
        self,
        cfg: Config,
        commands: dict[str, ServerCommand],
        drafter: LoadedDrafter,
        sets: PromptSets,
        logs: Path,
        reporter: Reporter,
    ) -> None:
        self.cfg, self.commands, self.boundaries = cfg, commands, drafter.boundaries
        self.sets, self.logs, self.reporter = sets, logs, reporter
        self._up: dict[str, Server] = {}
        self._stack = ExitStack()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Whatever was started has ended after the block."""
        try:
            yield
        finally:
            self._stop()

    def _stop(self) -> None:
        self._stack.close()
        self._up.clear()

    def use(self, name: str) -> Server:
        """The server, up and warm, its captured boundaries read back."""
        if name in self._up:
            return self._up[name]
        if not self.cfg.evaluate.beside:
            self._stop()
        command, began = self.commands[name], time.monotonic()
        capture = Path(command.added_env["SGLANG_CAPTURE_REPORT_DIR"])
        capture.mkdir(parents=True, exist_ok=True)
        for stale in capture.glob("capture-*"):
            stale.unlink()
        log = self.logs / f"served-{name}.log"
        self.reporter.note(f"starting SGLang {command.sglang_version}, {name}; log: {log}")
        server = Server.start(command, log=log, timeout_s=self.cfg.server.startup_timeout_s)
        self._stack.enter_context(server)
        self._up[name] = server
        for temperature in self.cfg.evaluate.temperatures:
            most = max(self.cfg.evaluate.concurrency)
            asyncio.run(
                put_load(server, name, -1, self.sets.prompts, self.sets.end_ids, temperature, most, WARM_UP_TOKENS)
            )
        require_captured(capture, [] if name == NONE else self.boundaries, name)
        self.reporter.note(f"{name}: ready and warm in {time.monotonic() - began:.0f} s")
        return server


def require_captured(folder: Path, boundaries: list[int], name: str) -> None:
    """What the running target hands to its drafter must be what the drafter was trained on.

    Args:
        boundaries: [] for a server without a drafter.

    Raises:
        ServerError: it is not, or the server does not say.
    """
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("capture-*.json"))]
    if not reports:
        raise ServerError(f"{name}: the server did not report what it captures in {folder}; is SGLANG_PLUGINS set?")
    for report in reports:
        if "error" in report:
            raise ServerError(f"{name}: what the server captures can't be read: {report['error']}")
        if report["boundaries"] != boundaries:
            raise ServerError(
                f"{name}: SGLang {report['sglang_version']} captures boundaries {report['boundaries']} of "
                f"{report['model']}, and the drafter was trained on {boundaries}: what it drafts would mean nothing. "
                f"Export it for this version: eagle3 export DRAFTER --format sglang "
                f"--sglang-version {report['sglang_version']}"
            )


def measure(cfg: Config, servers: Servers, sets: PromptSets, out: Path, reporter: Reporter) -> list[Load]:
    """Every load on every server, in turn, round by round; each is recorded as it comes."""
    wanted = cfg.evaluate
    loads: list[Load] = []
    total = wanted.rounds * len(servers.commands) * len(wanted.temperatures) * len(wanted.concurrency)
    with (out / LOADS).open("w", encoding="utf-8") as file:
        for round_ in range(wanted.rounds):
            for name in servers.commands:
                server = servers.use(name)
                for temperature in wanted.temperatures:
                    for concurrency in wanted.concurrency:
                        given = (sets.prompts, sets.end_ids, temperature, concurrency, wanted.max_new_tokens)
                        load = asyncio.run(put_load(server, name, round_, *given))
                        loads.append(load)
                        file.write(json.dumps(dataclasses.asdict(load)) + "\n")
                        shown = {"server": name, "tokens_per_s": round(load.rate, 1)}
                        reporter.progress(len(loads), total, unit="loads", **shown)
    return loads


def compare(cfg: Config, servers: Servers, sets: PromptSets, loads: list[Load]) -> tuple[list[Explained], int]:
    """Greedy answers with drafts against those without, one request at a time where that was measured.

    Returns:
        (every difference, explained; in how many answers the target differs from itself in another round).
    """
    greedy = [load for load in loads if load.temperature == 0]
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
