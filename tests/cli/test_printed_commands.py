"""Commands that are printed can be pasted: every value in them is quoted."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from eagle3.config import PROJECT

COMMAND = re.compile(
    r"(?:^|[\s`'\"(])(?:eagle3 (?:doctor|inspect|verify|export|export-data|import-data|compare)\b|python run\.py\b|"
    r"run\.py\b|python -m\b|X -m\b|wandb sync\b|vllm serve\b|-m eagle3\.|--(?:model-path|speculative-draft-model-path|"
    r"config-dir|snapshot) $)[^`\n]*$"
)
"""Text that ends within a command, so that what follows is one of its words."""
QUOTED = ("quote", "join", "replay_command", "serve_command", "shown")


def sources() -> list[Path]:
    return [*sorted((PROJECT / "src" / "eagle3").rglob("*.py")), *sorted((PROJECT / "bench").glob("*.py"))]


def unquoted(tree: ast.AST) -> Iterator[ast.FormattedValue]:
    """Values that stand in a command as they are."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                if COMMAND.search(text) and not _harmless(part):
                    yield part
                text += "X"


def _harmless(part: ast.FormattedValue) -> bool:
    """Quoted, or a number, or the name of something of ours that has no spaces."""
    value = part.value
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in QUOTED
    return part.format_spec is not None or "sglang_version" in ast.unparse(value)


def joined_with_blanks(tree: ast.AST) -> Iterator[ast.Call]:
    """`" ".join(argv)`: not what was given, where a word has a blank."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.fullmatch(r"' '\.join\((?:\w+\.)*argv\)", ast.unparse(node)):
            yield node


def test_every_value_in_a_printed_command_is_quoted() -> None:
    trees = [(path.relative_to(PROJECT), ast.parse(path.read_text(encoding="utf-8"))) for path in sources()]
    found = [f"{path}:{part.lineno}: {ast.unparse(part.value)}" for path, tree in trees for part in unquoted(tree)]
    found += [f"{path}:{call.lineno}: {ast.unparse(call)}" for path, tree in trees for call in joined_with_blanks(tree)]
    assert not found, "\n".join(found)
