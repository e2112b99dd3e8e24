"""Loads as a GPU's servers would leave them: made up, and named so. No server speculates on a CPU."""

from eagle3.evaluation.figures import NONE
from eagle3.evaluation.load import Load, Reply
from eagle3.evaluation.prompts import Prompt

SETTING = "s3k1d4"
SLOW, FAST = 2.0, 0.5
"""Seconds of a load of 40 tokens."""


ASKED = [Prompt("chat", "a", [1]), Prompt("code", "b", [1, 2])]


def asked(name: str, key: str) -> str:
    """The name of a prompt's tokens."""
    return next((prompt.asked for prompt in ASKED if (prompt.set, prompt.key) == (name, key)), f"{name}/{key}")


def reply(key: str, ids: list[int], histogram: list[int], name: str = "chat", seconds: float = 1.0) -> Reply:
    return Reply(name, key, asked(name, key), ids, seconds, sum(histogram), histogram)


def loads(speed_ups: list[float], without: float = 20.0, other: list[int] | None = None) -> list[Load]:
    """Two answers of 20 tokens a load; each round has both servers; `without` is the target's own tokens/s.

    Args:
        other: the drafted answer to the second prompt, where it is not the target's own.
    """
    own = [list(range(100, 120)), list(range(200, 220))]
    found = []
    for round_, speed_up in enumerate(speed_ups):
        plain = [reply("a", own[0], [], seconds=1.0), reply("b", own[1], [], "code", seconds=3.0)]
        drafted = [reply("a", own[0], [2, 2, 1, 3]), reply("b", other or own[1], [6, 1, 1, 0], "code")]
        found.append(Load(NONE, round_, 0.0, 1, 40 / without, plain))
        found.append(Load(SETTING, round_, 0.0, 1, 40 / (without * speed_up), drafted))
    return found
