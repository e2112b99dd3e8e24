"""The report's sample drafts: what the drafter said at a few held-out places, first and in the end."""

import re
from collections.abc import Iterator
from typing import Any

from eagle3.tracking.results import Stage

_TABLE, _CHOSEN_BY, _EPOCH = "val/samples", "val/accept_length", "val/epoch"


def sample_section(train: Stage) -> Iterator[str]:
    """Lines of Markdown; none where the training reported no samples."""
    tables = {row["step"]: row["values"][_TABLE] for row in train.rows if row["values"].get(_TABLE)}
    validations = {row["step"]: row["values"] for row in train.rows if _CHOSEN_BY in row["values"]}
    steps = sorted(tables.keys() & validations.keys())
    if not steps:
        return
    # Of equal ones the first: so does the checkpoint that the drafter is exported from.
    best = max(steps, key=lambda step: (validations[step][_CHOSEN_BY], -step))
    first = steps[0] if steps[0] != best else None
    yield "## Sample drafts\n"
    yield (
        "At a few places of held-out conversations: the text so far, the tokens that the target would say next, and "
        "those that the drafter drafts; `[ ]` holds a token. Drafts count up to the first that is not the target's.\n"
    )
    earlier = {} if first is None else {(row["sample"], row["position"]): row for row in tables[first]}
    lines: list[str] = []
    for row in tables[best]:
        lines += [f"conversation {row['sample']}, token {row['position']}: {row['context']}"]
        lines += [f"  target              {row['target']}"]
        before = earlier.get((row["sample"], row["position"]))
        if before is not None and first is not None:
            lines += [_drafted(f"after {_when(validations[first], first)}", before)]
        lines += [_drafted("this drafter", row), ""]
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    yield f"{fence}text"
    yield from lines[:-1]
    yield f"{fence}\n"


def _when(values: dict[str, Any], step: int) -> str:
    return f"epoch {values[_EPOCH]:g}" if _EPOCH in values else f"step {step}"


def _drafted(who: str, row: dict[str, Any]) -> str:
    return f"  {who:<18}  {row['drafted']}  {row['accepted']} of {row['drafts']}"
