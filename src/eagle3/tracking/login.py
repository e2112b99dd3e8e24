"""Whether this machine is logged in to W&B, found without importing it: the import takes a second."""

import configparser
import netrc
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from eagle3.config.schema import TrackingConfig
from eagle3.errors import ConfigError

WAYS_OUT = "log in with `wandb login`, or set WANDB_API_KEY, or choose tracking=offline (sync later with `wandb sync`)"


def find_login() -> str | None:
    """Where a W&B login is found: WANDB_API_KEY, an identity token, netrc or W&B's settings; None without one."""
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        if os.environ.get(name):
            return name
    settings = _settings()
    if settings.get("api_key"):
        return "W&B's settings file"
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or settings.get("base_url") or "https://api.wandb.ai").hostname
    candidates = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for candidate in candidates:
        path = Path(candidate).expanduser()
        with suppress(OSError, netrc.NetrcParseError):
            if host and netrc.netrc(str(path)).authenticators(host):
                return str(path)
    return None


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
