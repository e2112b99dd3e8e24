"""The part of the configuration that is about measuring a drafter."""

from dataclasses import dataclass, field


@dataclass
class DraftSetting:
    """How a server drafts."""

    steps: int = 3
    """Passes of the drafter between two of the target."""
    topk: int = 1
    """Tokens that each draft branches into; 1 drafts a chain."""
    tokens: int = 4
    """Draft tokens that one pass of the target checks; steps + 1 for a chain, the root among them."""


@dataclass
class EvaluateConfig:
    kind: str = "simulated"
    """simulated (from the dumped states), chain (real drafts, drafter and target in transformers), or served."""
    untrained: bool = True
    """Also measure the drafter before training, to show what training gave; served: one of random weights, to show that
    the measure is honest."""
    drafter: str | None = None
    """Folder of a drafter to measure instead of training one, also one that someone else made."""
    prompts: list[str] = field(default_factory=lambda: ["held_out", "chat", "code", "math", "summary"])
    """chain, served: what is asked: held_out conversations, shipped sets (datasets/prompts/), or JSONL files."""
    limit: int = 8
    """chain, served: prompts of each set, the first ones."""
    max_new_tokens: int = 128
    """chain, served: longest answer."""
    drafts: list[DraftSetting] = field(default_factory=lambda: [DraftSetting()])
    """served: a grid of settings, each measured; chain: the first one's steps."""
    follow: str | None = None
    """chain: folder of a served evaluation of the same drafter, whose greedy answers with the first of `drafts` are
    followed token for token: do server and chain count the same?"""
    concurrency: list[int] = field(default_factory=lambda: [1, 4, 16])
    """served: requests at a time."""
    temperatures: list[float] = field(default_factory=lambda: [0.0, 1.0])
    """served: 0 is greedy, and compared with the target's own answers."""
    rounds: int = 3
    """served: how often each server is measured, in turn."""
    beside: bool = False
    """served: all servers run at a time and share the GPUs' memory (server.flags.serving.max_total_tokens is the cache
    of each); else each is started anew for each round."""
