"""`eagle3 doctor`: is this machine fit, and if not, what to do. Starts nothing and changes nothing."""

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from eagle3.commands import checks
from eagle3.config.load import from_root
from eagle3.config.schema import PathsConfig
from eagle3.errors import EXIT_DONE, EXIT_FAILED

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def run_doctor(artifacts: Path | None = None, cache: Path | None = None, server_python: str | None = None) -> int:
    """Prints one line a check, as each is done; 1 if one failed."""
    from eagle3.target.resolve import cache_folder

    artifacts = artifacts or Path(from_root(PathsConfig().artifacts))
    cache = cache or cache_folder(None)
    table: list[tuple[str, Callable[[], checks.Finding]]] = [
        ("Python", checks.python),
        ("packages", checks.packages),
        ("SGLang", lambda: checks.sglang(server_python)),
        ("GPU", checks.gpu),
        ("memory", checks.memory),
        ("artifacts", lambda: checks.disk(artifacts, "paths.artifacts")),
        ("cache", lambda: checks.disk(cache, "paths.cache")),
        ("shared memory", checks.shared_memory),
        ("ports", checks.ports),
        ("W&B", checks.wandb_login),
        ("model hub", checks.hub),
    ]
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    verdicts = []
    for name, check in table:
        finding = check()
        verdicts.append(finding.verdict)
        colour = _COLOURS[finding.verdict]
        console.print(Text.assemble((f"{finding.verdict:<5}", colour), (f"{name:<14}", "bold"), finding.found))
        if finding.remedy:
            console.print(Text.assemble(" " * 19, ("-> ", colour), finding.remedy))
    failed, warned = verdicts.count("fail"), verdicts.count("warn")
    text = f"{failed} to repair" if failed else "ready"
    console.print(f"\n{text}" + (f", {warned} to know of" if warned else ""))
    return EXIT_FAILED if failed else EXIT_DONE
