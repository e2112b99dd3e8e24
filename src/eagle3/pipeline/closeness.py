"""How close two drafters are that the same training made twice: their weights, and what they do on held-out text.

Sums that are taken in another order (threads of a CPU, atomic additions of a GPU) differ in their last bits, and over
thousands of steps the weights drift apart. What the drafter is worth does not, so that is what has a tolerance.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

TOLERANCE = 0.02
"""Share of the held-out accept length by which a training that is repeated may differ."""
NAMED = 3
"""Tensors named in a line, at most."""


def weights_apart(before: Path, after: Path) -> str:
    """What differs between two `model.safetensors`: the distance of the weights, as a share of their norm.

    Tensors of whole numbers (d2t, t2d) have no distance, and their offsets would drown that of the weights: they are
    the same or not.
    """
    off = whole = 0.0
    largest, furthest, unequal = -1.0, "", []
    with safe_open(before, framework="pt") as old, safe_open(after, framework="pt") as new:
        odd = sorted(set(old.keys()) ^ set(new.keys()))
        for name in sorted(set(old.keys()) & set(new.keys())):
            a, b = old.get_tensor(name), new.get_tensor(name)
            if a.shape != b.shape or a.dtype != b.dtype:
                odd.append(name)
            elif not a.is_floating_point():
                if not a.equal(b):
                    unequal.append(name)
            else:
                here, size = float((a.double() - b.double()).square().sum()), float(a.double().square().sum())
                off, whole = off + here, whole + size
                if (share := _share(here, size)) > largest:
                    largest, furthest = share, name
    if odd:
        return f"it has another shape ({_some(odd)})"
    said = [f"{_some(unequal)} {'is' if len(unequal) == 1 else 'are'} not the same"] if unequal else []
    if off:
        most = f"most of all {furthest}, by {largest:.2g} of its own"
        said.append(f"its weights differ by {_share(off, whole):.2g} of their norm, {most}")
    return ", and ".join(said or ["its tensors are the same, the file is not"])


def figures_apart(then: Mapping[str, Any], now: Mapping[str, Any], same_training: bool) -> str:
    """Held-out figures of two `report/summary.json` beside each other, and whether they are within `TOLERANCE`.

    Args:
        same_training: all that determines the training is the same, so that nothing else explains a difference.
    """
    length = "val/accept_length"
    if not (_is_number(then.get(length)) and _is_number(now.get(length))):
        return "there are no held-out figures of both to compare"
    said = f"held-out {_beside('accept length', then[length], now[length])}"
    if _is_number(then.get("val/loss")) and _is_number(now.get("val/loss")):
        said += f", {_beside('loss', then['val/loss'], now['val/loss'])}"
    if not same_training:
        return f"{said}; it is another training, so that no tolerance is stated"
    if abs(now[length] - then[length]) > TOLERANCE * then[length]:
        return f"{said}. WARNING: the accept length of a training that is repeated should be within {TOLERANCE:.0%}"
    return f"{said}: the accept length is within the {TOLERANCE:.0%} by which a training that is repeated may differ"


def _beside(what: str, then: float, now: float) -> str:
    return f"{what} {now:.3f} against {then:.3f} then ({abs(now - then) / max(abs(then), 1e-300):.2%})"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _share(squared: float, of: float) -> float:
    """Of two sums of squares, the ratio of their roots; all that is added to nothing is infinitely far."""
    return (squared / of) ** 0.5 if of else float("inf") if squared else 0.0


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
