"""NCCL profile to environment. Rendered here and passed to the child only: NCCL reads its variables once a process."""

from collections.abc import Sequence

from eagle3.config.schema import NcclProfile
from eagle3.errors import ConfigError
from eagle3.server.nccl_names import PREFIX, contradiction, impossible, unknown


def profile_env(profile: NcclProfile, key: str, extra: Sequence[str] = ()) -> dict[str, str]:
    """The profile's variables, sorted by name.

    Args:
        key: where the profile stands in the configuration, e.g. `nccl.extraction`; named in errors.
        extra: names that are taken though they are not known here (`nccl.extra`).

    Raises:
        ConfigError: a variable that NCCL does not have, a value that it can't take, or two that contradict each other.
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
    return env
