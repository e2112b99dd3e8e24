"""NCCL profile to environment. Rendered here and passed to the child only: NCCL reads its variables once a process."""

import os
from collections.abc import Mapping, Sequence

from omegaconf import OmegaConf

from eagle3.config.load import option_file
from eagle3.config.schema import NcclProfile
from eagle3.errors import ConfigError
from eagle3.server.nccl_names import CHOICES, LABELS, PREFIX, contradiction, impossible, unknown


def profile_env(profile: NcclProfile, key: str, extra: Sequence[str] = ()) -> dict[str, str]:
    """The profile's variables, sorted by name.

    Args:
        key: where the profile stands in the configuration, e.g. `nccl.extraction`; named in errors.
        extra: names that are taken though they are not known here (`nccl.extra`).

    Raises:
        ConfigError: a variable that NCCL does not have, a value that it can't take, or two that contradict each other,
            also with those of the shell.
    """
    env = {}
    for name, value in sorted(profile.env.items()):
        if not name.startswith(PREFIX):
            raise ConfigError(f"{key}.env.{name}: a profile holds {PREFIX}* variables only; put others into server.env")
        text = str(value).strip()
        if not text or any(character.isspace() for character in text):
            raise ConfigError(
                f"{key}.env.{name}={value!r}: must be one word; leave the variable out to keep NCCL's default"
            )
        if name not in extra:
            if (wrong := unknown(name)) is not None:
                raise ConfigError(
                    f"{key}.env.{name}: {wrong}. A newer one is taken when nccl.extra names it: nccl.extra=[{name}]"
                )
            if (wrong := impossible(name, text)) is not None:
                raise ConfigError(f"{key}.env.{name}={text}: {wrong}")
        env[name] = text
    if (wrong := contradiction(env)) is not None:
        raise ConfigError(f"{key}.env: {wrong}; keep one of them")
    shell = inherited(env)
    if (wrong := contradiction(in_force(env))) is not None:
        raise ConfigError(f"{key}.env: {wrong}, in part from the shell ({', '.join(shell)}): unset it there")
    for name in (CHOICES & shell.keys()) - {*extra}:
        if (wrong := impossible(name, shell[name])) is not None:
            raise ConfigError(f"{name}={shell[name]}, which the shell sets, {wrong}. Unset it there")
    return env


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """NCCL's settings that a server has beside its profile's, because this process has them; sorted by name."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIX) and name not in LABELS and name not in env
    }


def in_force(env: Mapping[str, str]) -> dict[str, str]:
    """All that NCCL reads in a server: what the shell sets, and the profile's, which has the last word."""
    return {**inherited(env), **env}


def profile_name(profile: NcclProfile) -> str:
    """Its name, and whether it is not what the shipped profile of that name says."""
    shipped = option_file("nccl", profile.name)
    if not shipped.is_file():
        return profile.name
    content = OmegaConf.to_container(OmegaConf.load(shipped))
    env = content.get("env") if isinstance(content, dict) else None
    return profile.name if (env or {}) == {**profile.env} else f"{profile.name}, changed"
