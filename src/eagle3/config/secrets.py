"""Keeps secrets out of configurations: a resolved one ends in the snapshot, the logs and W&B."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from eagle3.errors import ConfigError

_NAME = re.compile(r"(^|[_\-.])(api_?key|key|token|secret|passw(or)?d|credentials?)($|[_\-.])", re.IGNORECASE)
_ENV = re.compile(r"\$\{\s*oc\.env:\s*([A-Za-z_][A-Za-z0-9_]*)")
_SHAPE = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_\-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16})\b"
    r"|(?<=://)[^/\s:@]+:[^/\s:@]+(?=@)"
)
"""Tokens that tell by their form what they are: of model hubs, of services, of clouds; a password in an address."""
_RANDOM = re.compile(r"[0-9a-f]{32,}|(?=\S*[0-9])(?=\S*[A-Z])(?=\S*[a-z])[A-Za-z0-9+/=]{24,}")
"""Digits and letters of both cases, without a word between them: only keys look like this."""
_SHORTEST = 8
"""Shorter values from the environment ('1', 'true') are no secrets and would match by chance."""


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{prefix}[{index}]")
    else:
        yield prefix, node


def looks_secret(name: str) -> bool:
    """Whether a variable or key of this name usually holds a secret (WANDB_API_KEY, HF_TOKEN, ...)."""
    return bool(_NAME.search(name))


def looks_like_one(value: str) -> bool:
    """Whether a value of the environment has a secret's form, whatever its name: a known token's, or random letters."""
    return bool(_SHAPE.search(value) or _RANDOM.fullmatch(value))


def check_secrets(cfg: DictConfig) -> None:
    """Refuses a configuration that reads, holds or names a secret.

    Raises:
        ConfigError: names the key; children inherit the shell's environment, so a secret belongs there.
    """
    remedy = "a config ends in snapshots, logs and W&B; export it in the shell instead: child processes inherit it"
    for key, value in _leaves(OmegaConf.to_container(cfg, resolve=False)):
        if isinstance(value, str):
            for name in _ENV.findall(value):
                if looks_secret(name) or looks_like_one(os.environ.get(name, "")):
                    raise ConfigError(f"{key}: reads the secret {name} from the environment; {remedy}")
        leaf = key.rsplit(".", 1)[-1]
        if isinstance(value, str) and value and (looks_secret(leaf) or _SHAPE.search(value)):
            raise ConfigError(f"{key}: looks like a secret; {remedy}")
    known = {value: name for name, value in os.environ.items() if looks_secret(name) and len(value) >= _SHORTEST}
    for key, value in _leaves(OmegaConf.to_container(cfg, resolve=True)):
        if isinstance(value, str) and _SHAPE.search(value):
            raise ConfigError(f"{key}: looks like a secret; {remedy}")
        for secret, name in known.items():
            if isinstance(value, str) and secret in value:
                raise ConfigError(f"{key}: holds the value of the environment's {name}; {remedy}")


def redact(text: str) -> str:
    """`text` with the values of the environment's secrets replaced by their names, and known tokens by `<secret>`."""
    for name, value in os.environ.items():
        if looks_secret(name) and len(value) >= _SHORTEST:
            text = text.replace(value, f"<{name}>")
    return _SHAPE.sub("<secret>", text)
