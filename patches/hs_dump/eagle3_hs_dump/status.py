"""What the plugin tells its launcher: a ready marker once, a status file twice a second."""

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

PERIOD_S = 0.5
RESERVE_BYTES = 64 * 1024


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Beside and renamed: a reader sees all of it or the previous one."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(content), encoding="utf-8")
    beside.replace(path)


def write_ready(work: Path, content: dict[str, Any]) -> None:
    """`work/ready-<pid>.json`; {"error": ...} when the dump cannot work. SGLang only logs a plugin's exception."""
    write_json(work / f"ready-{os.getpid()}.json", {"pid": os.getpid(), **content})


class Status:
    """Keeps `work/status-<pid>.json` fresh. On a full disk it gives a reserve back, so that the reason can be told."""

    def __init__(self, work: Path, read: Callable[[], dict[str, Any]]) -> None:
        self._path = work / f"status-{os.getpid()}.json"
        self._reserve = work / f"reserve-{os.getpid()}"
        self._read = read
        self._reserve.write_bytes(bytes(RESERVE_BYTES))
        self.write()
        threading.Thread(target=self._run, name="hs-dump-status", daemon=True).start()

    def write(self) -> None:
        content = {"pid": os.getpid(), "time": time.time(), **self._read()}
        if content.get("error"):
            with suppress(OSError):
                self._reserve.unlink(missing_ok=True)
        with suppress(OSError):
            write_json(self._path, content)

    def _run(self) -> None:
        while True:
            time.sleep(PERIOD_S)
            self.write()
