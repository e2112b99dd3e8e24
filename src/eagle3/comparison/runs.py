"""Run folders as what a comparison needs of them; whatever else is given becomes a line that says what it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from eagle3.comparison.figures import BENCH, EVALUATE, figures_in, stage_of
from eagle3.config.differences import flat
from eagle3.config.origin import SNAPSHOT
from eagle3.errors import ConfigError
from eagle3.evaluation.sequences import Sequences
from eagle3.files.json_file import json_or_empty
from eagle3.server.nccl_log import unused
from eagle3.tracking.cost import cost_figures, stage_hours
from eagle3.tracking.results import FAILURE, TRAINED, acceptance

_LONGEST_CAUSE = 200
"""Letters of a failure that are shown; all of it is in the run's folder."""
SIMULATED, CHAIN, SERVED = "simulated", "chain", "served"
"""How acceptance is measured."""
_DEPTH = 4
"""Folders below a given one in which runs are looked for: runs/<experiment>/<sweep>/<job>, and one to spare."""
_SHAPE = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "draft_vocab_size": "draft_vocab_size",
    "rope_theta": "rope_theta",
}
"""Keys of `drafter` that may be the target's, and what a drafter's config.json calls them."""


@dataclass(frozen=True)
class Run:
    """One finished run."""

    folder: Path
    config: dict[str, Any]
    """By dotted key; what it left to the target, as far as the run says what it was, in the place of null."""
    summary: dict[str, Any]
    """report/summary.json."""
    provenance: dict[str, Any]
    sequences: Sequences | None
    """None where nothing was evaluated, where it was served, or where the file is damaged."""
    not_followed: list[str] = field(default_factory=list)
    """Settings that NCCL did not read or did not follow when the served target was measured."""
    varied: list[str] = field(default_factory=list)
    """Overrides of a sweep's job that not all its jobs have: its name where nothing else tells it."""
    nccl_unused: bool = False
    """Whether NCCL did nothing when the served target was measured, as with one GPU."""

    @property
    def benched(self) -> bool:
        """Whether the served target was measured."""
        return any(stage_of(name) == BENCH for name in figures_in(self.summary))

    @property
    def only_benched(self) -> bool:
        """Without data and without a drafter (`until=bench`)."""
        made = set(self.provenance.get("artifacts") or {})
        return self.benched and not self.conditional and made <= {BENCH}

    def measurement(self, stage: str) -> str:
        """Of a stage's artifact: runs that share one have one measurement; the run itself where that is not known.

        Of a run that was not evaluated: the artifact that it ended with.
        """
        if stage == EVALUATE and not self.conditional:
            stage = str(self.config.get("until"))
        return str((self.provenance.get("artifacts") or {}).get(stage) or self.folder)

    @property
    def conditional(self) -> list[float]:
        """Acceptance of each drafted token; [] where nothing was evaluated."""
        return acceptance(self.summary, TRAINED).conditional

    @property
    def target(self) -> str | None:
        """Fingerprint of the target."""
        return (self.provenance.get("target") or {}).get("fingerprint")

    @property
    def dataset(self) -> str | None:
        """Fingerprint of the conversations."""
        return (self.provenance.get("dataset") or {}).get("fingerprint")

    @property
    def imported(self) -> bool:
        """Whether the hidden states were imported: their folder takes the place of both stages' artifacts."""
        made = self.provenance.get("artifacts") or {}
        return made.get("prepare") is not None and made.get("prepare") == made.get("extract")

    @property
    def prepared(self) -> str | None:
        """Fingerprint of the conversations as tokens, with those held out; None of imported ones."""
        made = self.provenance.get("artifacts") or {}
        return None if self.imported or "prepare" not in made else Path(made["prepare"]).name

    @property
    def kind(self) -> str:
        """simulated, chain or served: how acceptance was measured."""
        return str(self.summary.get("eval/kind", SIMULATED))

    def figure(self, name: str) -> float | None:
        value = self.summary.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def dataset_of(run: Run) -> str:
    """Its name, and enough of its fingerprint to see two versions apart."""
    name = run.config.get("dataset.name")
    return f"{name} {short_print(run.dataset)}" if run.dataset else str(name)


def short_print(fingerprint: str | None) -> str:
    return "unknown" if fingerprint is None else fingerprint[:8]


@dataclass(frozen=True)
class Note:
    """A folder that is left out, and why."""

    folder: Path
    why: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.why}"


def collect(paths: Sequence[Path]) -> tuple[list[Run], list[Note]]:
    """Every run at or below the paths, each once, in the order of their names below each path.

    Raises:
        ConfigError: nothing is at one of them.
    """
    for path in paths:
        if not path.exists():  # a mistake in what was typed, and not a run without figures
            raise ConfigError(f"{path}: there is no such path")
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
    return "overrides" in json_or_empty(folder / "job.json")


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
    if path.is_file():
        return "a file; give the folder of a run or a sweep"
    if (path / "config.json").is_file():
        return "a model's or drafter's folder; give that of the run, which holds its figures"
    return "no run is in it; give runs/<experiment>/<time>, a sweep's folder, or one that holds several"


def _read(folder: Path) -> Run | Note:
    job = json_or_empty(folder / "job.json")
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
    summary = json_or_empty(folder / "report" / "summary.json")
    if not isinstance(config, dict) or not summary:
        return Note(folder, "finished, but report/summary.json can't be read; the same command writes it again")
    made = json_or_empty(folder / "provenance.json")
    sequences = Sequences.read(folder / "report")
    nccl = json_or_empty(folder / "report" / "nccl.json")
    asked = dict(flat(config))
    asked |= dict(_held(folder, asked, summary))
    if stage_hours(summary, asked):  # an older report counted less
        summary |= cost_figures(summary, asked)
    not_followed = nccl.get("not_followed") or []
    return Run(folder, asked, summary, made, sequences, not_followed, _varied(folder, job), unused(nccl))


def _held(folder: Path, config: dict[str, Any], summary: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values that the configuration may leave to the target, as the run's report and its drafter say them."""
    said = summary.get("boundaries")
    if isinstance(said, str) and said:
        yield "layers.boundaries", [int(b) for b in said.split(",")]
    drafter = json_or_empty(folder / "drafter" / "config.json")
    for key, name in _SHAPE.items():
        if name in drafter and f"drafter.{key}" in config:
            yield f"drafter.{key}", drafter[name]


def _varied(folder: Path, job: dict[str, Any]) -> list[str]:
    planned = json_or_empty(folder.parent / "sweep.json").get("jobs") or []
    return [item for item in job.get("overrides") or [] if not all(item in overrides for overrides in planned)]


def _line(text: str) -> str:
    return shorten(text, _LONGEST_CAUSE, placeholder=" ...")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
