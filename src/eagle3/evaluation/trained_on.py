"""What a drafter was trained on, as far as that is known: it is not to be measured on what it has seen."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3.config.origin import PROVENANCE
from eagle3.config.provenance import file_sha256
from eagle3.data.placement import PROMPTS, Prompts, read_prompts

_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


def drafter_sha256(folder: Path) -> str:
    """Of a drafter's files: description and weights."""
    return file_sha256(sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors")))


def weights_sha256(folder: Path) -> str:
    """Of a drafter's weights alone."""
    return file_sha256(sorted(folder.glob("*.safetensors")))


@dataclass(frozen=True)
class TrainedOn:
    folder: Path | None
    """Of prepare; None where that is not known, or not on this machine."""
    why: str = ""
    """It is not known."""


@dataclass(frozen=True)
class Asked:
    """What a prepare folder asks: of each conversation the tokens before the first of a response."""

    held_out: dict[str, list[int]]
    """By sample id."""
    trained: frozenset[bytes]
    """`key_of` those that are not held out."""

    @staticmethod
    def of(folder: Path) -> "Asked":
        """Raises DataError where the folder has no prompts, or damaged ones."""
        prompts = Prompts.load(folder)
        _, (held_out,) = read_prompts(folder, ["held_out"])
        kept: dict[str, list[int]] = {}
        trained: set[bytes] = set()
        for i, sample in enumerate(prompts.sample_ids.tolist()):
            rows = slice(int(prompts.offsets[i]), int(prompts.offsets[i + 1]))
            asked = before_response(prompts.input_ids[rows], prompts.loss_mask[rows])
            if len(asked) and held_out[i]:
                kept[str(sample)] = asked.tolist()
            elif len(asked):
                trained.add(key_of(asked))
        return Asked(kept, frozenset(trained))


def before_response(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """`ids [S]` up to the first that `mask [S]` marks; empty where none is marked."""
    answers = np.flatnonzero(mask)
    return ids[: answers[0] if len(answers) else 0]


def key_of(ids: np.ndarray | list[int]) -> bytes:
    """The same for the same tokens."""
    return np.asarray(ids, np.int32).tobytes()


def trained_on(drafter: str | None, prepared: Path | None) -> TrainedOn:
    """Of the drafter that `evaluate.drafter` names, by the provenance that it carries.

    Args:
        drafter: None is one that was trained in this run.
        prepared: folder of this run's prepare.
    """
    if drafter is None:
        return TrainedOn(prepared, "" if prepared is not None else "no prepared prompts were given")
    named = _prepare_of(Path(drafter))
    if named is None:
        return TrainedOn(None, "it carries no provenance that names it")
    places = [Path(named)]
    if prepared is not None and _FINGERPRINT.fullmatch(places[0].name):  # the same content wherever it lies
        places.append(prepared.with_name(places[0].name))
    for place in places:
        if (place / PROMPTS).is_file():
            return TrainedOn(place)
    return TrainedOn(None, f"its provenance names {named}, which is not here")


def _prepare_of(drafter: Path) -> str | None:
    try:
        made = json.loads((drafter / PROVENANCE).read_text(encoding="utf-8"))
        return str(made["artifacts"]["prepare"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def not_known(training: TrainedOn) -> str:
    """What is to be said of it."""
    return f"what the drafter was trained on is not known ({training.why}): it may have seen some of what it is asked"


def training_figures(known: bool, left_out: int) -> dict[str, int]:
    """Of an evaluation's summary: whether what the drafter has seen is known, and how much of that was left out."""
    return {"eval/training_known": int(known), "eval/left_out": left_out}
