"""How a run's figures were measured. Those that were measured alike are ranked; others are never put side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.comparison.figures import BENCH
from eagle3.comparison.runs import CHAIN, SERVED, Run, dataset_of, short_print
from eagle3.units import counted

NOT_EVALUATED = "not evaluated"
_HOW = {CHAIN: "real drafts, no server", BENCH: "the served target"}
"""What a kind is called, where not by its own name."""
_HELD_OUT = "held_out"


@dataclass(frozen=True)
class _Part:
    """Something that has to be the same."""

    key: Any
    said: str


@dataclass(frozen=True)
class Measured:
    """A way of measuring; runs of which all parts have the same key were measured alike."""

    kind: str
    """simulated, chain, served, bench or not evaluated."""
    parts: tuple[_Part, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.kind, *(part.key for part in self.parts))

    @staticmethod
    def of(run: Run, stage: str) -> "Measured":
        if stage == BENCH:
            return Measured(BENCH, tuple(_benched(run)))
        if not run.conditional:
            return Measured(NOT_EVALUATED)
        parts = {CHAIN: _chain, SERVED: _served}.get(run.kind, _simulated)(run)
        return Measured(run.kind, (_target(run), *parts))


def names_of(ways: Sequence[Measured]) -> list[str]:
    """A name for each: its kind, and of its parts those that tell it from others of its kind."""
    names: list[str] = []
    for way in ways:
        alike = [other for other in ways if other.kind == way.kind]
        differ = [len({other.parts[i].key for other in alike}) > 1 for i in range(len(way.parts))]
        said = [part.said for part, differs in zip(way.parts, differ, strict=True) if differs]
        name = ", ".join([_HOW.get(way.kind, way.kind), *said])
        names.append(_numbered(name, names, " ({})"))
    return names


def slugs_of(ways: Sequence[Measured]) -> list[str]:
    """A short one for each, to name files and figures by: `simulated`, `chain_2`."""
    slugs: list[str] = []
    for way in ways:
        slugs.append(_numbered(way.kind.replace(" ", "_"), slugs, "_{}"))
    return slugs


def _numbered(name: str, taken: Sequence[str], form: str) -> str:
    number = 2
    unique = name
    while unique in taken:
        unique, number = name + form.format(number), number + 1
    return unique


def _target(run: Run) -> _Part:
    found = run.target
    return _Part(found, f"target {run.config.get('target.name')} {short_print(found)}" if found else "unknown target")


def _simulated(run: Run) -> list[_Part]:
    data = _Part((run.dataset, run.prepared), f"dataset {dataset_of(run)}" if run.dataset else "unknown conversations")
    ids = None if run.sequences is None else run.sequences.ids
    if ids is None:
        return [data, _Part(None, "unknown split")]
    return [data, _Part(ids.tobytes(), f"{len(ids)} held-out conversations")]


def _chain(run: Run) -> list[_Part]:
    """What was asked is known by its tokens, whatever dataset the drafter was trained on."""
    ids = None if run.sequences is None else run.sequences.ids
    asked = _asked(run, None if ids is None else ids.tobytes())
    followed = run.figure("eval/followed/served_accept_length")
    own = _Part(followed, "the target's own answers" if followed is None else "served answers")
    return [asked, _drafted(run, len(run.conditional)), _longest(run), own]


def _served(run: Run) -> list[_Part]:
    drafts = [
        "s{steps}k{topk}d{tokens}".format(**draft) for draft in _list(run, "drafts") if {"steps", "topk"} <= set(draft)
    ]
    streams, temperatures = ([f"{value:g}" for value in _list(run, key)] for key in ("concurrency", "temperatures"))
    beside = bool(run.config.get("evaluate.beside"))
    load = f"{', '.join(streams)} at a time at temperature {', '.join(temperatures)}" + " beside each other" * beside
    return [
        _asked(run, None),
        _Part(tuple(drafts), ", ".join(drafts)),
        _Part((*streams, "", *temperatures, beside), load),
        _longest(run),
    ]


def _asked(run: Run, ids: bytes | None) -> _Part:
    names = [Path(str(name)).stem for name in _list(run, "prompts")]
    count = run.figure("eval/sequences")
    said = f"{count or 0:.0f} prompts of {', '.join(names)}"
    if ids is not None:
        return _Part(ids, said)
    data = (run.dataset, run.prepared) if _HELD_OUT in names else None
    return _Part((tuple(_list(run, "prompts")), run.config.get("evaluate.limit"), count, data), said)


def _drafted(run: Run, steps: int) -> _Part:
    return _Part(steps, f"{counted(steps, 'draft')} a pass")


def _longest(run: Run) -> _Part:
    most = run.config.get("evaluate.max_new_tokens")
    return _Part(most, f"answers of up to {most} tokens")


def _benched(run: Run) -> list[_Part]:
    asked = {
        name: run.config.get(f"bench.{name}")
        for name in ("prompt_tokens", "decode_tokens", "prefill_prompts", "prefill_tokens")
    }
    decode = "{decode_tokens} tokens decoded after {prompt_tokens}".format(**asked)
    prefill = "{prefill_prompts} prompts of {prefill_tokens} tokens prefilled".format(**asked)
    return [_target(run), _Part(decode, decode), _Part(prefill, prefill)]


def _list(run: Run, key: str) -> list[Any]:
    found = run.config.get(f"evaluate.{key}")
    return found if isinstance(found, list) else []
