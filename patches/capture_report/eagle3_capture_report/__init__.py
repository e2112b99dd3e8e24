"""SGLang plugin that says which boundaries a running target captures for its drafter, read from the model itself.

Boundary b is the residual stream entering layer b. Models keep what they capture in `layers_to_capture` with exactly
that meaning; what the drafter's config.json calls it, and what the setter makes of that, differs by model and version.
Inert unless SGLANG_CAPTURE_REPORT_DIR names a folder.
"""

import functools
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
FOLDER = "SGLANG_CAPTURE_REPORT_DIR"
LIST = "layers_to_capture"


def captured(model: Any) -> list[int]:
    """Boundaries that the model captures, ascending; [] where it captures none."""
    found = [getattr(module, LIST) for module in model.modules() if getattr(module, LIST, None)]
    if len(found) > 1:
        raise ValueError(f"{type(model).__name__} holds {LIST} in {len(found)} places")
    return sorted(int(b) for b in found[0]) if found else []


def report(runner: Any) -> None:
    """Written beside and renamed; an error is told in the same file."""
    import sglang

    content: dict[str, Any] = {"model": type(runner.model).__name__, "sglang_version": sglang.__version__}
    try:
        content["boundaries"] = captured(runner.model)
    except Exception as error:  # whoever reads the file fails of it; the server goes on
        log.exception("the captured boundaries can't be read")
        content["error"] = f"{type(error).__name__}: {error}"
    path = Path(os.environ[FOLDER]) / f"capture-{os.getpid()}.json"
    beside = path.with_suffix(".partial")
    beside.write_text(json.dumps(content))
    beside.replace(path)


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`; called in each of the server's processes."""
    if FOLDER not in os.environ or "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.model_executor.model_runner import ModelRunner

    original = ModelRunner.forward
    passes: dict[int, int] = {}

    @functools.wraps(original)
    def forward(runner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(runner, *args, **kwargs)
        if not runner.is_draft_worker:
            count = passes[id(runner)] = passes.get(id(runner), 0) + 1
            if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...: seldom, and whatever changes it is seen
                report(runner)
        return result

    ModelRunner.forward = forward
