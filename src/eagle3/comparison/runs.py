"""Run folders as what a comparison needs of them; whatever else is given becomes a line that says what it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from eagle3.comparison.figures import BENCH, figures_in, stage_of
from eagle3.config.differences import flat
from eagle3.config.origin import SNAPSHOT
from eagle3.tracking.results import FAILURE, SEQUENCES, TRAINED, UNTRAINED, acceptance, read_json

_LONGEST_CAUSE = 200
"""Letters of a failure that are shown; all of it is in the run's folder."""
SIMULATED = "simulated"
_DEPTH = 4
"""Folders below a given one in which runs are looked for: runs/<experiment>/<sweep>/<job>, and one to spare."""


@dataclass(frozen=True)
class Sequences:
    """Acceptance of each held-out sequence; of n sequences and TTT steps."""

    ids: np.ndarray
    """[n] int64."""
    reached: np.ndarray
    """[n, steps]: positions where all earlier drafts were right."""
    accepted: np.ndarray
    """[n, steps]: of these, where this one is right too."""


@dataclass(frozen=True)
class Run:
    """One finished run."""

    folder: Path
    config: dict[str, Any]
    """By dotted key."""
    summary: dict[str, Any]
    """report/summary.json."""
    provenance: dict[str, Any]
    sequences: Sequences | None
    """None in a report of an older version."""
    not_followed: list[str] = field(default_factory=list)
    """Settings that NCCL did not read or did not follow when the served target was measured."""

    @property
    def benched(self) -> bool:
        """Whether the served target was measured."""
        return any(stage_of(name) == BENCH for name in figures_in(self.summary))

    @property
    def only_benched(self) -> bool:
        """Without data and without a drafter (`until=bench`)."""
        return self.benched and set(self.provenance.get("artifacts") or {}) <= {BENCH}

    def measurement(self, stage: str) -> str:
        """Of a stage's artifact: runs that share one have one measurement; the run itself where that is not known."""
        return str((self.provenance.get("artifacts") or {}).get(stage) or self.folder)

    @property
    def conditional(self) -> list[float]:
        """Acceptance of each drafted token; [] where nothing was evaluated."""
        return acceptance(self.summary, TRAINED).conditional

    @property
    def untrained(self) -> float | None:
        return acceptance(self.summary, UNTRAINED).accept_length

    @property
    def dataset(self) -> str | None:
        """Fingerprint of the conversations."""
        return (self.provenance.get("dataset") or {}).get("fingerprint")

    @property
    def kind(self) -> str:
        """simulated, chain or served: how acceptance was measured."""
        return str(self.summary.get("eval/kind", SIMULATED))

    @property
    def measured_on(self) -> tuple[Any, ...]:
        """Target, conversations, those held out, and how: where these differ, figures can't be compared."""
        target = (self.provenance.get("target") or {}).get("fingerprint")
        prepared = (self.provenance.get("artifacts") or {}).get("prepare")
        ids = None if self.sequences is None else self.sequences.ids.tobytes()
        asked = None
        if self.kind != SIMULATED:
            asked = tuple(str(self.config.get(f"evaluate.{key}")) for key in ("prompts", "limit", "max_new_tokens"))
        return target, self.dataset or prepared, ids, self.kind, asked

    def figure(self, name: str) -> float | None:
        value = self.summary.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Note:
    """A folder that is left out, and why."""

    folder: Path
    why: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.why}"


def collect(paths: Sequence[Path]) -> tuple[list[Run], list[Note]]:
    """Every run at or below the paths, each once, in the order of their names below each path."""
    runs: list[Run] = []
    notes: list[Note] = []
    seen: set[Path] = set()
    for path in paths:
        folders = list(_run_folders(path, _DEPTH)) if path.is_dir() else []
        if not folders:
            notes.append(Note(path, _what_else(path)))
        for folder in folders:
            if folder.resolve() not in seen:
                seen.add(folder.resolve())
                found = _read(folder)
                runs.append(found) if isinstance(found, Run) else notes.append(found)
    return runs, notes


def _is_run(folder: Path) -> bool:
    if (folder / "config.json").exists():  # a drafter has the snapshot of its run
        return False
    return (folder / SNAPSHOT).is_file() or (folder / "provenance.json").is_file() or _is_job(folder)


def _is_job(folder: Path) -> bool:
    """Of a sweep, which records a job before and after it ran."""
    return "overrides" in read_json(folder / "job.json")


def _run_folders(path: Path, depth: int) -> Iterator[Path]:
    if _is_run(path):
        yield path
    elif depth:
        for below in sorted((p for p in path.iterdir() if p.is_dir()), key=_natural):
            yield from _run_folders(below, depth - 1)


def _natural(path: Path) -> tuple[int, str]:
    """Job 2 before job 10."""
    return (int(path.name), "") if path.name.isdigit() else (-1, path.name)


def _what_else(path: Path) -> str:
    if not path.exists():
        return "there is no such path"
    if path.is_file():
        return "a file; give the folder of a run or a sweep"
    if (path / "config.json").is_file():
        return "a model's or drafter's folder; give that of the run, which holds its figures"
    return "no run is in it; give runs/<experiment>/<time>, a sweep's folder, or one that holds several"


def _read(folder: Path) -> Run | Note:
    job = read_json(folder / "job.json")
    if job.get("status") == "failed":
        why = _line(str(job.get("failure") or ""))
        return Note(folder, f"failed: {why}" if why else "failed")
    if not (folder / "DONE").is_file():
        failure = _line(_text(folder / FAILURE) or "")
        return Note(folder, f"not finished: {failure}" if failure else "not finished; the same command continues it")
    try:
        config = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    except (OSError, YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        return Note(folder, f"config.yaml can't be read ({type(error).__name__})")
    summary = read_json(folder / "report" / "summary.json")
    if not isinstance(config, dict) or not summary:
        return Note(folder, "finished, but report/summary.json can't be read; the same command writes it again")
    made = read_json(folder / "provenance.json")
    sequences = _sequences(folder / "report" / SEQUENCES)
    not_followed = read_json(folder / "report" / "nccl.json").get("not_followed") or []
    return Run(folder, dict(flat(config)), summary, made, sequences, not_followed)


def _line(text: str) -> str:
    return shorten(text, _LONGEST_CAUSE, placeholder=" ...")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _sequences(path: Path) -> Sequences | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return Sequences(*(file.get_tensor(name) for name in ("sample_ids", "reached", "accepted")))
    except (OSError, SafetensorError):
        return None
