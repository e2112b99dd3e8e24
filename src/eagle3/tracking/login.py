"""Whether this machine is logged in to W&B, found without asking it: its import takes a second."""

import configparser
import netrc
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from eagle3.config.schema import TrackingConfig
from eagle3.errors import ConfigError

WAYS_OUT = "log in with `wandb login`, or set WANDB_API_KEY, or choose tracking=offline (sync later with `wandb sync`)"


SAAS = "api.wandb.ai"
"""Where logins to W&B's own service are filed, also by versions that reach it by another name."""


def find_login() -> str | None:
    """Where a W&B login is found: WANDB_API_KEY, an identity token, W&B's settings or netrc; None without one."""
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        if os.environ.get(name):
            return name
    settings = _settings()
    if settings.get("api_key"):
        return "W&B's settings file"
    path = _netrc_file()
    try:
        entries = netrc.netrc(str(path))
    except (OSError, netrc.NetrcParseError):
        return None
    return str(path) if any(entries.authenticators(host) for host in _hosts(settings)) else None


def _hosts(settings: dict[str, str]) -> list[str]:
    """Names under which netrc may hold the key."""
    own = os.environ.get("WANDB_BASE_URL") or settings.get("base_url")
    if own:
        return [urlsplit(own).netloc]
    import wandb  # takes a second; only now is its own default needed

    return [urlsplit(wandb.Settings().base_url).netloc, SAAS]


def _netrc_file() -> Path:
    if os.environ.get("NETRC"):
        return Path(os.environ["NETRC"]).expanduser()
    return next((p for name in ("~/.netrc", "~/_netrc") if (p := Path(name).expanduser()).exists()), Path("~/.netrc"))


def _settings() -> dict[str, str]:
    folder = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    parser = configparser.ConfigParser()
    with suppress(OSError, configparser.Error):
        parser.read(folder / "settings")
    return dict(parser["default"]) if parser.has_section("default") else {}


def require_login(tracking: TrackingConfig) -> None:
    """Call it before anything is started: takes no time and starts nothing.

    Raises:
        ConfigError: `tracking.mode=online`, and no W&B login is found.
    """
    if tracking.mode == "online" and find_login() is None:
        raise ConfigError(f"tracking.mode: online, but there is no W&B login on this machine; {WAYS_OUT}")
