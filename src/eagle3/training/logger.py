"""Lightning's logger interface over a `Reporter`."""

from argparse import Namespace
from typing import Any

from lightning.pytorch.loggers import Logger

from eagle3.metrics import Reporter


class ReporterLogger(Logger):
    """Rows of the metrics file; whoever reads them takes a step that was trained twice as last done."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self.reporter = reporter

    @property
    def name(self) -> str:
        return "eagle3"

    @property
    def version(self) -> int:
        return 0

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.reporter.log(metrics, step)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the run folder has the configuration."""


class Silent:
    """The reporter of the ranks that have nothing to say."""

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        pass

    def progress(self, done: float, total: float, **fields: Any) -> None:
        pass

    def note(self, text: str) -> None:
        pass
