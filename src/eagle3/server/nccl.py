"""NCCL profile to environment. Rendered here and passed to the child only: NCCL reads its variables once a process."""

from eagle3.config.schema import NcclProfile
from eagle3.errors import ConfigError

PREFIX = "NCCL_"


def profile_env(profile: NcclProfile, key: str) -> dict[str, str]:
    """The profile's variables, sorted by name.

    Args:
        key: where the profile stands in the configuration, e.g. `nccl.extraction`; named in errors.
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
        env[name] = text
    return env
