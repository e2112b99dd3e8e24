"""The W&B run: one for each eagle3 run, owned by the parent process, offline unless asked otherwise.

W&B is a witness, not a part of the work: a missing login stops an online run before anything has started; whatever
goes wrong with W&B later (network, disk, its service killed) becomes one warning, and the run goes on.
"""

import dataclasses
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from eagle3.config.schema import Config
from eagle3.config.secrets import redact
from eagle3.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, Eagle3Error
from eagle3.tracking.artifacts import dataset_artifact, drafter_artifact, folder_artifact, placed_under
from eagle3.tracking.login import WAYS_OUT, require_login
from eagle3.tracking.wandb_values import redacted, short, table, tags

AXES = {
    "prepare": "prepare/conversations",
    "extract": "extract/sequences",
    "train": "train/step",
    "val": "train/step",
    "eval": "eval/sequences",
    "serve": "eval/sequences",
    "bench": "bench/repeat",
}
"""Namespace -> the metric that its plots have as x axis. A row's `step` is the value of that axis."""

REPORT_PAGE = "report.md"
_JOB_TYPES = {"report": "evaluate"}
_INIT_TIMEOUT_S = 30.0
_FINISH_TIMEOUT_S = 120.0
_LONGEST_FAILURE = 2000

__all__ = ["AXES", "TrackedRun", "exit_code", "open_run", "require_login", "tags"]


class TrackedRun:
    """A `Reporter` that writes to W&B, and the rest that a run leaves there. No method raises for W&B's sake."""

    def __init__(self, run: Any, run_dir: Path, cfg: Config, warn: Callable[[str], None]) -> None:
        self._run, self._run_dir, self._cfg, self._warn = run, run_dir, cfg, warn
        self._figures: dict[str, Any] = {}
        self._links: dict[str, dict[str, Any]] = {}
        """Of each artifact that was logged: what others name it by."""

    @property
    def folder(self) -> Path | None:
        """The run's folder under run_dir/wandb, for `wandb sync`; None when nothing is tracked."""
        return Path(self._run.settings.sync_dir) if self._run is not None else None

    @property
    def url(self) -> str | None:
        """The run's page; None offline."""
        return self._run.url if self._run is not None and not self._run.offline else None

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        row = {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}
        tables = {name: value for name, value in values.items() if isinstance(value, list) and value}
        tables = tables if self._cfg.tracking.samples else {}
        if step is not None:
            for namespace in {name.split("/", 1)[0] for name in (*row, *tables)}:
                if (axis := AXES.get(namespace)) is not None:
                    row.setdefault(axis, step)

        def log_row(run: Any) -> None:
            run.log(row | {name: table(rows) for name, rows in tables.items()})

        if (row or tables) and self._run is not None and not self._try("a row of figures", log_row):
            self._warn("W&B is left out from here on; metrics.jsonl has everything")
            self._run = None
            _stop_service(EXIT_FAILED)

    def progress(self, done: float, total: float, **fields: Any) -> None:
        """Passing: for the terminal only."""

    def note(self, text: str) -> None:
        """Passing: for the terminal only."""

    def config(self, values: dict[str, Any]) -> None:
        """Adds to the configuration what is known only later, e.g. {"provenance": ...} with the artifacts' names."""
        provenance = {name: short(value) if name == "provenance" else value for name, value in values.items()}
        self._try("its configuration", lambda run: run.config.update(redacted(provenance), allow_val_change=True))

    def summary(self, values: dict[str, Any]) -> None:
        """Figures to sort and compare runs by; they also describe the drafter's and the report's artifact, as one key:
        W&B takes no artifact with more than 100."""
        self._figures |= values
        self._try("the summary", lambda run: run.summary.update(values))

    def plots(self, folder: Path) -> None:
        """Logs every PNG of `folder` as plots/<name>."""

        def log_images(run: Any) -> None:
            import wandb

            images = {f"plots/{path.stem}": wandb.Image(str(path)) for path in sorted(folder.glob("*.png"))}
            if images:
                run.log(images)

        self._try("the plots", log_images)

    def dataset(self, folder: Path) -> None:
        """Logs the dataset's manifest (never its shards) as an artifact of type dataset."""
        self._artifact("dataset", lambda: dataset_artifact(folder))

    def drafter(self, folder: Path, metadata: dict[str, Any] | None = None) -> None:
        """Logs a drafter folder as an artifact of type model; it names the dataset it was trained on."""
        told = {"figures": dict(self._figures), "made_from": dict(self._links), **(metadata or {})}
        self._artifact("drafter", lambda: drafter_artifact(folder, self._cfg.target.name, told))

    def report(self, folder: Path) -> None:
        """Logs the report as an artifact of type report; it names the drafter and the dataset that it is about."""
        skipped = () if self._cfg.tracking.samples else (REPORT_PAGE,)  # it shows text of conversations
        name = f"report-{self._cfg.target.name}"
        told = {"figures": dict(self._figures), "made_from": dict(self._links)}
        self._artifact("report", lambda: folder_artifact(folder, name, "report", told, skipped))

    def comparison(self, folder: Path, rows: list[dict[str, Any]], summary: dict[str, Any]) -> None:
        """Logs a comparison of runs: the table `compare/runs`, the plots, the summary, and the folder as a report."""
        self._try("the comparison", lambda run: run.log({"compare/runs": table(rows)}))
        self.summary(summary)
        self.plots(folder)
        self._artifact("report", lambda: folder_artifact(folder, f"comparison-{self._cfg.name}", "report", summary))

    def _artifact(self, what: str, make: Callable[[], Any]) -> None:
        def log_it(run: Any) -> None:
            artifact = make()
            run.log_artifact(artifact)
            self._links[what] = {"artifact": artifact.name.split(":")[0], "digest": artifact.digest}

        if self._cfg.tracking.artifacts:
            self._try(f"the {what}", log_it)

    def failed(self, error: BaseException) -> None:
        """Says in the summary, as `failure`, what ended the run."""
        text = redact(f"{type(error).__name__}: {error}")[:_LONGEST_FAILURE]
        self._try("what ended the run", lambda run: run.summary.update({"failure": text}))

    def finish(self, exit_code: int) -> None:
        """Ends the run and W&B's service process; a second call does nothing."""
        if self._run is not None:
            self._try("the end of the run", lambda run: run.finish(exit_code=exit_code))
            self._run = None
            _stop_service(exit_code)

    def _try(self, what: str, action: Callable[[Any], object]) -> bool:
        if self._run is None:
            return True
        try:
            with placed_under(self._run_dir):
                action(self._run)
        except Exception as error:
            self._warn(f"W&B did not take {what}: {_line(error)}")
            return False
        return True


@contextmanager
def open_run(
    cfg: Config,
    run_dir: Path,
    choices: dict[str, Any],
    provenance: dict[str, Any],
    warn: Callable[[str], None] | None = None,
    job_type: str | None = None,
) -> Iterator[TrackedRun]:
    """Opens the run, yields it, and finishes it on every way out with the exit code that the exception means.

    choices: `hydra.runtime.choices`, for tags. warn: shows one line; standard error without it. job_type: by default
    the last stage. Files land under run_dir/wandb.

    Raises:
        ConfigError: online without a login, or with one that W&B refuses.
    """
    warn = warn or (lambda text: print(f"warning: {text}", file=sys.stderr))
    require_login(cfg.tracking)
    tracked = TrackedRun(_start(cfg, run_dir, choices, provenance, warn, job_type), run_dir, cfg, warn)
    code = 0
    try:
        yield tracked
    except BaseException as error:
        code = exit_code(error)
        if code not in (EXIT_DONE, EXIT_INTERRUPTED):
            tracked.failed(error)
        raise
    finally:
        tracked.finish(code)


def exit_code(error: BaseException) -> int:
    """The process's exit code for an exception that ends it."""
    if isinstance(error, Eagle3Error):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return EXIT_FAILED


def _start(
    cfg: Config,
    run_dir: Path,
    choices: dict[str, Any],
    provenance: dict[str, Any],
    warn: Callable[[str], None],
    job_type: str | None,
) -> Any:
    """The open wandb.Run, or None: not wanted, or not to be had (which is said)."""
    if cfg.tracking.mode == "disabled":
        return None
    mode = cfg.tracking.mode
    try:
        (run_dir / "wandb").mkdir(parents=True, exist_ok=True)
        try:
            return _init(cfg, run_dir, choices, provenance, mode, job_type)
        except Exception as error:
            _stop_service(EXIT_FAILED)
            if mode != "online":
                raise
            from wandb.errors import AuthenticationError, UsageError

            if isinstance(error, AuthenticationError | UsageError):
                raise ConfigError(f"tracking.mode: W&B refuses the login: {_line(error)}; {WAYS_OUT}") from error
            warn(f"W&B can't be reached, so this run is written offline (sync it later): {_line(error)}")
            for left in (run_dir / "wandb").glob("run-*"):  # of the attempt; an empty run for whoever syncs the folder
                shutil.rmtree(left, ignore_errors=True)
            return _init(cfg, run_dir, choices, provenance, "offline", job_type)
    except ConfigError:
        raise
    except Exception as error:
        warn(f"W&B could not start, so this run is not tracked: {_line(error)}")
        _stop_service(EXIT_FAILED)
        return None


def _init(
    cfg: Config,
    run_dir: Path,
    choices: dict[str, Any],
    provenance: dict[str, Any],
    mode: str,
    job_type: str | None,
) -> Any:
    with placed_under(run_dir):
        import wandb

        settings = wandb.Settings(
            mode="online" if mode == "online" else "offline",
            root_dir=str(run_dir),
            project=cfg.tracking.project,
            entity=cfg.tracking.entity,
            run_group=cfg.tracking.group or cfg.name,
            run_job_type=job_type or _JOB_TYPES.get(cfg.until, cfg.until),
            run_id=secrets.token_hex(4),  # not WANDB_RUN_ID, which runs of a sweep would share
            run_name=f"{cfg.name}/{run_dir.name}",
            run_tags=tags(choices, cfg.tracking.tags),
            reinit="create_new",
            silent=True,
            console="off",
            save_code=False,
            disable_code=True,
            disable_job_creation=True,
            # A remote's address can carry a token; the commit alone says what is needed.
            disable_git=True,
            git_commit=(provenance.get("git") or {}).get("commit"),
            init_timeout=_INIT_TIMEOUT_S,
            finish_timeout=_FINISH_TIMEOUT_S,
            x_stats_track_process_tree=True,
            x_stats_disk_paths=[str(run_dir)],
        )
        config = {**dataclasses.asdict(cfg), "choices": dict(choices), "provenance": short(provenance)}
        run = wandb.init(config=redacted(config), settings=settings)
    os.environ.pop("WANDB_SERVICE", None)  # children must not join this run's service
    for namespace, axis in AXES.items():
        run.define_metric(axis)
        run.define_metric(f"{namespace}/*", step_metric=axis)
    return run


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _stop_service(code: int) -> None:
    if "wandb" in sys.modules:
        with suppress(Exception):
            sys.modules["wandb"].teardown(exit_code=code)
