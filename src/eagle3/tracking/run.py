"""The W&B run: one for each eagle3 run, owned by the parent process, offline unless asked otherwise."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle3.config.schema import Config, TrackingConfig


class TrackedRun:
    """A `Reporter` that writes to W&B, and the rest that a run leaves there. No method ever raises for W&B's sake."""

    @property
    def folder(self) -> Path | None:
        """The run's folder under run_dir/wandb, for `wandb sync`; None when nothing is tracked."""
        raise NotImplementedError

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        raise NotImplementedError

    def progress(self, done: float, total: float, **fields: Any) -> None:
        """Transient: not kept."""

    def note(self, text: str) -> None:
        """Not kept."""

    def summary(self, values: dict[str, Any]) -> None:
        """Figures to sort and compare runs by."""
        raise NotImplementedError

    def plots(self, folder: Path) -> None:
        """Logs every PNG of `folder` as plots/<name>."""
        raise NotImplementedError

    def dataset(self, folder: Path) -> None:
        """Logs the dataset's manifest (never its shards) as an artifact of type dataset."""
        raise NotImplementedError

    def drafter(self, folder: Path, metadata: dict[str, Any] | None = None) -> None:
        """Logs a drafter folder as an artifact of type model."""
        raise NotImplementedError


def require_login(tracking: TrackingConfig) -> None:
    """Raises ConfigError when `tracking.mode=online` and no W&B login is found. Starts nothing; call it early."""
    raise NotImplementedError


@contextmanager
def open_run(cfg: Config, run_dir: Path, choices: dict[str, str], provenance: dict[str, Any]) -> Iterator[TrackedRun]:
    """Opens the run, yields it, and finishes it on every way out with the exit code that the exception means.

    choices: `hydra.runtime.choices`, for tags. Files land under run_dir/wandb.
    """
    raise NotImplementedError
    yield
