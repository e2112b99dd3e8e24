"""The model card of an exported drafter: README.md with figures, provenance and the command that serves it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3 import __version__
from eagle3.commands.origin import made_of, part
from eagle3.files.json_file import json_or_empty
from eagle3.files.whole import whole_file
from eagle3.target.info import TargetInfo

_FIGURES = (
    ("eval/accept_length", "accept length, {kind}", "{:.2f}"),
    ("eval/untrained/accept_length", "the same before training", "{:.2f}"),
    ("serve/best", "best setting: steps, topk, draft tokens", "{}"),
    ("serve/speedup", "tokens/s over those of no speculation", "{:.2f}x"),
    ("serve/break_even", "accept length at which there is no gain", "{:.2f}"),
    ("serve/tokens_per_s", "tokens/s", "{:,.0f}"),
    ("prepare/tokens", "tokens of the conversations", "{:,.0f}"),
    ("prepare/response_tokens", "of them in responses, held-out conversations included", "{:,.0f}"),
    ("train/sequences", "sequences trained on", "{:,.0f}"),
    ("train/held_out_sequences", "sequences held out", "{:,.0f}"),
)
_KINDS = {"chain": "of real drafts on held-out prompts, greedy", "served": "served, with the best setting measured"}
_SIMULATED = "simulated on held-out conversations"


@dataclass(frozen=True)
class Card:
    source: Path
    """The drafter's folder that was exported; figures and provenance are looked for beside it."""
    target: TargetInfo
    verifier: str
    """What the target is called where it is served."""
    boundaries: list[int]
    made_for: str
    command: str


def write_card(out: Path, card: Card) -> None:
    """Writes `out`/README.md. Raises DataError where it can't be written."""
    with whole_file(out / "README.md") as partial:
        partial.write_text("\n".join(_lines(out, card)) + "\n", encoding="utf-8")


def _lines(out: Path, card: Card) -> Iterator[str]:
    config = json_or_empty(out / "config.json")
    hub = card.target.source.startswith("hub:")
    yield "---"
    if hub:
        yield f"base_model: {json.dumps(card.verifier)}"
    yield "tags: [speculative-decoding, eagle3]"
    yield "---"
    yield f"# EAGLE-3 drafter for {card.target.name}\n"
    yield f"For {card.made_for}. It reads boundaries {', '.join(map(str, card.boundaries))} of the target: the residual"
    yield "stream entering these layers, which is the output of the layers before them.\n"
    yield f"## Serve it\n\n```bash\n{card.command}\n```\n"
    figures = list(_figures(card.source.absolute().parent))
    if figures:
        yield "## Figures\n\n| | |\n| --- | --- |"
        yield from (f"| {name} | {value} |" for name, value in figures)
        yield ""
    yield "## Provenance\n\n| | |\n| --- | --- |"
    yield from (f"| {name} | {value} |" for name, value in _provenance(config, card))


def _figures(made: Path) -> Iterator[tuple[str, str]]:
    """Of the run (report/summary.json), or of the training (summary.json)."""
    found: dict[str, Any] = json_or_empty(made / "summary.json") | json_or_empty(made / "report" / "summary.json")
    for name, text, form in _FIGURES:
        if isinstance(value := found.get(name), str if form == "{}" else int | float):
            yield text.format(kind=_KINDS.get(str(found.get("eval/kind")), _SIMULATED)), form.format(value)


def _below(stage: str, folder: Path) -> str:
    """The artifact's name: of an extraction the fingerprint and the boundaries."""
    parts = folder.parts
    above = max((i for i, name in enumerate(parts[:-1]) if name == stage), default=len(parts) - 2)
    return "/".join(parts[above + 1 :])


def _provenance(config: dict[str, Any], card: Card) -> Iterator[tuple[str, str]]:
    made = made_of(card.source)
    yield "target", f"{card.target.name}, {card.target.source}, fingerprint {card.target.fingerprint[:16]}"
    draft, whole = config.get("draft_vocab_size"), card.target.vocab_size
    yield "draft vocabulary", f"{draft:,} of {whole:,} tokens" if isinstance(draft, int) else f"{whole:,} tokens"
    layer = config.get("transformer_layer_config", config)
    yield "layers", str(layer.get("num_hidden_layers"))
    on = [name for name in ("fc_norm", "norm_output") if config.get(name)]
    yield "switches", ", ".join(on) or "none (plain EAGLE-3)"
    versions = {name: version for name, version in part(made, "versions").items() if version}
    if versions:
        yield "made with", ", ".join(f"{name} {version}" for name, version in versions.items())
    if commit := part(made, "git").get("commit"):
        yield "commit", f"`{commit}`" + (", changed" if part(made, "git").get("dirty") else "")
    for stage, folder in part(made, "artifacts").items():
        yield stage, f"`{_below(stage, Path(str(folder)))}`"
    yield "exported by", f"eagle3 {__version__}"
