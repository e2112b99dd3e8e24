"""How fast the target is served: decoding one stream and several, and prefill; with what NCCL was told and did.

Prompts are random tokens, other ones each time, so that no cache answers. A figure is tokens over the wall time from
the first request to the last reply: for decoding that holds the prefill of a short prompt.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from eagle3.config.schema import BenchConfig, Config
from eagle3.errors import ConfigError, ServerError
from eagle3.evaluation.load import alive
from eagle3.files.json_file import write_json
from eagle3.metrics import Reporter
from eagle3.server.client import Client
from eagle3.server.flags import RESERVED_TOKENS, ServerCommand, server_command
from eagle3.server.launch import Server
from eagle3.server.nccl import inherited, profile_env, profile_name
from eagle3.server.nccl_log import SUBSYSTEMS, NcclReport, not_followed, parse
from eagle3.server.nccl_names import PREFIX, impossible, unknown
from eagle3.target import TargetInfo

LOG = "bench-server.log"
PREFILL = "bench/prefill"
FOREVER_S = 1e6
"""A reply may take as long as the server lives; `Server.check` sees to the rest."""


def bench_command(cfg: Config, model: str | Path) -> ServerCommand:
    """The serving server, with NCCL saying what it does unless the profile wants to hear something else.

    Raises:
        ConfigError: as server_command.
    """
    profile = cfg.nccl.serving
    told = dataclasses.replace(profile, env={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, **profile.env})
    heard = dataclasses.replace(cfg, nccl=dataclasses.replace(cfg.nccl, serving=told))
    return server_command(heard, "serving", model, extra={"skip_tokenizer_init": True})


def run_bench(cfg: Config, target: TargetInfo, out: Path, reporter: Reporter, logs: Path) -> None:
    """Measures, and writes summary.json (medians, and each repeat) and nccl.json into `out`.

    Raises:
        ConfigError: sequences longer than the target takes.
        ServerError: the server did not start, died, or has not the environment that it was given.
    """
    require_lengths(cfg, target)
    command, log, began = bench_command(cfg, target.path), logs / LOG, time.monotonic()
    env, name = profile_env(cfg.nccl.serving, "nccl.serving", cfg.nccl.extra), profile_name(cfg.nccl.serving)
    reporter.note(f"starting SGLang {command.sglang_version} with NCCL profile {name}; log: {log}")
    with Server.start(command, log=log, timeout_s=cfg.server.startup_timeout_s) as server:
        reporter.note(f"server ready in {time.monotonic() - began:.0f} s")
        seen = _environment_seen(server, env)
        samples = asyncio.run(_measure(cfg, target, server, reporter))
    seconds = round(time.monotonic() - began, 1)
    report = parse(server.tree.log.read_text(encoding="utf-8", errors="replace"))
    flags = not_followed(env, report)
    flags += [_from_the_shell(name, value, cfg.nccl.extra) for name, value in inherited(env).items()]
    for text in (*_said(report), *flags):
        reporter.note(text)
    told = {"profile": name, "environment": seen, "not_followed": flags}
    write_json(out / "nccl.json", told | vars(report))
    summary: dict[str, Any] = {"bench/profile": name, "bench/not_followed": len(flags)}
    summary["bench/stage_seconds"] = seconds
    for name, values in samples.items():
        summary |= {name: median(values), f"{name}/smallest": min(values), f"{name}/largest": max(values)}
    write_json(out / "summary.json", {**summary, "samples": samples})


def require_lengths(cfg: Config, target: TargetInfo) -> None:
    """Raises ConfigError where a sequence that is measured would be longer than the target takes."""
    longest = max(cfg.bench.prompt_tokens + cfg.bench.decode_tokens, cfg.bench.prefill_tokens) + RESERVED_TOKENS
    if longest > target.context_length:
        raise ConfigError(
            f"bench: sequences of {longest - RESERVED_TOKENS} tokens are more than the target's context of "
            f"{target.context_length} allows; lower bench.prefill_tokens, or prompt_tokens and decode_tokens"
        )


def _from_the_shell(name: str, value: str, extra: Sequence[str]) -> str:
    wrong = None if name in extra else unknown(name) or impossible(name, value)
    return f"{name}={value}: comes from the shell{f'; {wrong}' if wrong else ''}"


def _environment_seen(server: Server, env: dict[str, str]) -> dict[str, str]:
    """NCCL's variables as they are in the running server's processes.

    Raises:
        ServerError: a process of SGLang has another value than the profile gives, or none could be looked at.
    """
    found: dict[str, str] = {}
    looked = 0
    for process in server.tree.members()[1:]:  # the first is the warden
        try:
            there = process.environ()
        except psutil.Error:
            continue
        if "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION" not in there:  # not one of ours, or it has overwritten it
            continue
        looked += 1
        found |= {name: value for name, value in there.items() if name.startswith(PREFIX)}
        wrong = [f"{name}={there.get(name)}, not {value}" for name, value in env.items() if there.get(name) != value]
        if wrong:
            raise ServerError(f"process {process.pid} of the server does not have nccl.serving: {'; '.join(wrong)}")
    if not looked:
        raise ServerError("no process of the server shows its environment, so that nccl.serving can't be seen in it")
    return dict(sorted(found.items()))


async def _measure(cfg: Config, target: TargetInfo, server: Server, reporter: Reporter) -> dict[str, list[float]]:
    """Figure -> tokens/s of each repeat. All figures in turn, and again, so that a slow minute meets each of them."""
    bench = cfg.bench
    chance = np.random.default_rng(bench.round)
    samples: dict[str, list[float]] = {f"bench/decode_{count}": [] for count in bench.concurrency} | {PREFILL: []}
    most = max(*bench.concurrency, bench.prefill_prompts)

    def prompts(count: int, length: int) -> list[list[int]]:
        return chance.integers(3, target.vocab_size, (count, length)).tolist()

    async with Client(server.url, most, timeout_s=FOREVER_S) as client:
        for repeat in range(bench.repeats + 1):  # the first warms up: kernels are compiled, graphs captured
            for figure, values in samples.items():
                rate = await alive(server, _one(client, bench, figure, prompts))
                if repeat > 0:
                    values.append(rate)
                    reporter.log({figure: rate, "bench/repeat": repeat}, repeat)
            reporter.progress(repeat, bench.repeats, unit="repeats", **_shown(samples))
    return samples


async def _one(
    client: Client, bench: BenchConfig, figure: str, prompts: Callable[[int, int], list[list[int]]]
) -> float:
    """Tokens/s of one measurement."""
    if figure == PREFILL:
        count, tokens = bench.prefill_prompts, bench.prefill_tokens
        name = time.monotonic_ns()
        work = [client.prefill([ids], [f"bench-{name}-{i}"]) for i, ids in enumerate(prompts(count, tokens))]
    else:
        count, tokens = int(figure.rsplit("_", 1)[1]), bench.decode_tokens
        work = [client.decode(ids, tokens) for ids in prompts(count, bench.prompt_tokens)]
    began = time.perf_counter()
    await asyncio.gather(*work)
    return count * tokens / (time.perf_counter() - began)


def _shown(samples: dict[str, list[float]]) -> dict[str, float]:
    return {name.removeprefix("bench/"): round(values[-1], 1) for name, values in samples.items() if values}


def _said(report: NcclReport) -> list[str]:
    if report.version is None:
        return ["NCCL said nothing: it is not used by one GPU or a CPU"]
    lines = [f"NCCL {report.version}, {report.ranks} ranks, channels {report.channels}, {', '.join(report.transports)}"]
    return lines + [f"{name}: {', '.join(chosen)}" for name, chosen in report.choices.items()]
