"""How long a prompt may be."""

from eagle3.config.schema import Config
from eagle3.server.flags import RESERVED_TOKENS, Role
from eagle3.target.info import TargetInfo


def longest_prompt(cfg: Config, target: TargetInfo) -> int:
    """Tokens: SGLang takes a few less than its context length, the target's unless a flag says otherwise."""
    return context_flag(cfg, target.context_length) - RESERVED_TOKENS


def context_flag(cfg: Config, otherwise: int, role: Role = "extraction") -> int:
    """The context length that the server is given for a role."""
    flags = {**cfg.server.flags.common, **getattr(cfg.server.flags, role)}
    return int(flags.get("context_length") or otherwise)
