"""Our values as W&B takes them: tags, tables, and configurations without secrets or long diffs."""

from typing import Any

from eagle3.config.secrets import redact

_LONGEST_TAG = 64


def tags(choices: dict[str, Any], further: list[str]) -> tuple[str, ...]:
    """`group=option` of each Hydra choice (its own groups left out), and the configured ones."""
    chosen = [f"{group.split('@')[-1]}={option}" for group, option in choices.items() if option is not None]
    kept = [tag for tag in chosen if not tag.startswith(("hydra/", "snapshot="))]
    return tuple(dict.fromkeys(tag[:_LONGEST_TAG] for tag in [*kept, *further] if tag))


def table(rows: list[dict[str, Any]]) -> Any:
    import wandb

    columns: list[Any] = list(rows[0])
    return wandb.Table(columns=columns, data=[[row.get(name) for name in columns] for row in rows])


def short(provenance: dict[str, Any]) -> dict[str, Any]:
    git = provenance.get("git")
    return {**provenance, "git": {k: v for k, v in git.items() if k != "diff"}} if isinstance(git, dict) else provenance


def redacted(node: Any) -> Any:
    if isinstance(node, dict):
        return {str(key): redacted(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [redacted(value) for value in node]
    return redact(node) if isinstance(node, str) else node
