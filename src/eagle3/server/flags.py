"""Configuration to the command that starts SGLang, checked against the installed version before anything starts.

Flags that a correct dump needs are set here and cannot be overridden by accident; the rest is `server.flags`.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from eagle3.config.schema import Config
from eagle3.errors import ConfigError
from eagle3.server.arguments import Installed, installed
from eagle3.server.nccl import profile_env
from eagle3.server.patches import patch_folder
from eagle3.server.required import ALLOW_UNTESTED, launch_module, refuse, require_version, required_flags

Role = Literal["extraction", "serving"]
PATH = "PYTHONPATH"
DUMP_FOLDER = "SGLANG_HS_DUMP_DIR"
CAPTURE_FOLDER = "SGLANG_CAPTURE_REPORT_DIR"
PLUGINS = "SGLANG_PLUGINS"
"""The plugins that SGLang loads; all that it finds where the variable is not set, ours among them."""
OUR_PLUGINS = ("eagle3_hs_dump", "eagle3_capture_report", "eagle3_cpu_attention", "eagle3_cpu_controller")
_SECRET = re.compile(r"token|key|secret|password|credential", re.IGNORECASE)
HIDDEN = "***"
QUIET_FLAGS = {"sleep_on_idle": True}
"""Of a server that shares its cores: its scheduler waits for a request, where it would look for one all the time. It
waits only with nothing running or queued, and wakes at once."""
RESERVED_TOKENS = 7
"""SGLang takes prompts up to its context length less this."""

_FROM_CONFIG = {
    "model_path": "target.path",
    "model": "target.path",
    "host": "server.host",
    "port": "server.port",
    "tp_size": "server.tp",
    "tensor_parallel_size": "server.tp",
    "device": "server.device",
    "dtype": "server.dtype",
    "trust_remote_code": "target.trust_remote_code",
    "tokenizer_path": "target.path",
    "revision": "target.revision",
    "chat_template": "target.chat_template",
}
"""Flags that have a key of their own in the configuration."""


@dataclass(frozen=True)
class ServerCommand:
    """What starts a server, and what is shown of it."""

    role: Role
    argv: tuple[str, ...]
    added_env: Mapping[str, str]
    """Beyond the inherited environment."""
    host: str
    port: int
    """0 until a free one is taken at the start."""
    sglang_version: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    """As given on the command line; recorded in the manifest."""

    def environment(self) -> dict[str, str]:
        """The child's whole environment: what it inherits, and on top what was added."""
        env = {**os.environ, **self.added_env}
        if PATH in self.added_env and os.environ.get(PATH):
            env[PATH] = os.pathsep.join((self.added_env[PATH], os.environ[PATH]))
        if env.get(PLUGINS):  # inherited: it names some, and would leave ours out
            env[PLUGINS] = ",".join((env[PLUGINS], *OUR_PLUGINS))
        return env

    def at_port(self, port: int) -> "ServerCommand":
        """The same command on a port."""
        argv = list(self.argv)
        argv[argv.index("--port") + 1] = str(port)
        flags = MappingProxyType({**self.flags, "port": port})
        return ServerCommand(self.role, tuple(argv), self.added_env, self.host, port, self.sglang_version, flags)

    def shown(self) -> str:
        """One shell line, secrets hidden."""
        env = [f"{name}={shlex.quote(visible(name, value))}" for name, value in self.added_env.items()]
        words = []
        for before, word in zip(("", *self.argv), self.argv, strict=False):
            hide = before.startswith("--") and not word.startswith("--")
            words.append(shlex.quote(visible(before, word) if hide else word))
        return " ".join((*env, *words))


def visible(name: str, value: Any) -> Any:
    """The value, or stars where the name says that it is a secret."""
    is_secret = _SECRET.search(name) and not re.search(r"tokens|tokenizer|token_", name)
    return HIDDEN if is_secret else value


def server_command(
    cfg: Config,
    role: Role,
    model: str | Path,
    *,
    dump: Path | None = None,
    extra: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    capture: Path | None = None,
) -> ServerCommand:
    """Command and environment of the server for a role. Starts nothing and imports neither torch nor SGLang.

    Args:
        model: local folder of the target (or its hub id, for a plan).
        dump: the dataset's `work/` folder; required for extraction.
        extra: flags of the caller, e.g. speculation with a drafter; they win over `server.flags`.
        defaults: flags that `server.flags` may change, left out where this SGLang has no such flag.
        capture: folder in which a serving server reports the boundaries that it captures for a drafter.

    Raises:
        ConfigError: a flag is unknown to the installed SGLang, or overrides what a correct dump needs; for extraction,
            also an SGLang that the dump was not tested with.
        ServerError: SGLang is not installed for `server.python`.
    """
    sglang = installed(cfg.server.python)
    fixed = _fixed(cfg, role, sglang)
    flags: dict[str, Any] = {
        "model_path": str(model),
        "host": cfg.server.host,
        "port": cfg.server.port,
        "tp_size": cfg.server.tp,
        "dtype": cfg.server.dtype,
    }
    if cfg.target.trust_remote_code:
        flags["trust_remote_code"] = True
    flags |= fixed
    given = {**_defaults(cfg), **(defaults or {})}
    soft = {name: value for name, value in given.items() if sglang.takes(name)}
    chosen = _chosen(cfg, role, fixed, sglang)
    flags |= {**soft, **chosen, **(extra or {})}
    for name in flags:
        if not sglang.takes(name):
            raise ConfigError(f"SGLang {sglang.version} has no flag {name}, which is needed here; use a tested version")
    module = launch_module(sglang) if role == "extraction" else "sglang.launch_server"
    argv = [cfg.server.python or sys.executable, "-m", module]
    for name, value in flags.items():
        argv += _words(name, value)
    return ServerCommand(
        role,
        tuple(argv),
        MappingProxyType(_environment(cfg, role, dump, capture, sglang)),
        cfg.server.host,
        cfg.server.port,
        sglang.version,
        MappingProxyType({name: visible(name, value) for name, value in flags.items()}),
    )


def _fixed(cfg: Config, role: Role, sglang: Installed) -> dict[str, Any]:
    """Set by us, not to be overridden."""
    flags: dict[str, Any] = {"skip_server_warmup": True}
    if cfg.server.device == "cpu":
        flags |= {"device": "cpu", "attention_backend": "torch_native"}
    return flags | required_flags(sglang) if role == "extraction" else flags


def _defaults(cfg: Config) -> dict[str, Any]:
    """Set by us unless `server.flags` says otherwise."""
    if cfg.server.device != "cpu":
        return {}
    # Without `max_total_tokens` SGLang sizes its cache from all of the machine's memory. The fraction takes nothing: it
    # bounds weights, cache and whatever other programs take while the server starts, and past it SGLang gives up.
    room = max(16384, 4 * cfg.dataset.max_length)
    flags = {"mem_fraction_static": 0.9, "max_total_tokens": room, "sampling_backend": "pytorch"}
    if cfg.server.tp > 1:
        flags["disable_custom_all_reduce"] = True  # is for GPUs, and would be tried
    return flags | QUIET_FLAGS


def _chosen(cfg: Config, role: Role, fixed: Mapping[str, Any], sglang: Installed) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for group in ("common", role):
        for name, value in getattr(cfg.server.flags, group).items():
            key = f"server.flags.{group}.{name}"
            if name.startswith("-") or "-" in name:
                raise ConfigError(f"{key}: write the flag as {name.strip('-').replace('-', '_')}")
            if name in _FROM_CONFIG:
                raise ConfigError(f"{key}: set {_FROM_CONFIG[name]} instead")
            if name in fixed and value != fixed[name]:
                why = "a correct dump needs it" if role == "extraction" else "the CPU needs it"
                raise ConfigError(f"{key}={value!r}: is {fixed[name]!r} because {why}; remove the key")
            if role == "extraction":
                refuse(key, name, value)
            if not sglang.takes(name):
                raise ConfigError(f"{key}: SGLang {sglang.version} has no such flag{_similar(name, sglang)}")
            if name in sglang.numbers and not _may_be_number(value):
                raise ConfigError(f"{key}={value!r}: SGLang {sglang.version} takes a number there")
            out[name] = value
    return out


def _may_be_number(value: Any) -> bool:
    """Also of texts that SGLang itself makes a number of (`1k`); null and false leave the flag away."""
    if isinstance(value, str):
        return re.match(r"\s*[-+]?\.?\d", value) is not None
    return value is None or (isinstance(value, (int, float)) and value is not True)


def _similar(name: str, sglang: Installed) -> str:
    import difflib

    close = difflib.get_close_matches(name, sglang.flags, n=3)
    return f"; did you mean {', '.join(close)}?" if close else ""


def _words(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, Mapping):
        return [flag, json.dumps(dict(value))]
    if isinstance(value, (list, tuple)):
        return [flag, *map(str, value)]
    return [flag, str(value)]


def _ranks_of_a_cpu(count: int) -> dict[str, str]:
    """What lets ranks of a CPU server work together: through gloo, on this machine. `server.env` may change it."""
    return {
        # A torch that is made for CUDA brings NCCL, and SGLang would start it here too, unless it can't be loaded.
        "SGLANG_NCCL_SO_PATH": "none",
        # Without it SGLang wants a NUMA node for each rank. It binds nothing here: that is a kernel's work.
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(["all"] * count),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _environment(cfg: Config, role: Role, dump: Path | None, capture: Path | None, sglang: Installed) -> dict[str, str]:
    nccl = profile_env(getattr(cfg.nccl, role), f"nccl.{role}", cfg.nccl.extra)
    ours: dict[str, str] = {
        "HF_HUB_OFFLINE": "1",  # the target is local by now; some loaders wait long for a network otherwise
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    }
    folders = []
    if cfg.server.device == "cpu":
        folders.append(patch_folder("cpu_kernels"))
        ours["SGLANG_USE_CPU_ENGINE"] = "1"
        # Threads that spin while they wait make a server that shares its cores with anything else five times slower.
        ours["OMP_WAIT_POLICY"] = "passive"
    if role == "extraction":
        folders.append(patch_folder("hs_dump"))
        ours[DUMP_FOLDER] = str(dump) if dump is not None else "<dataset>/work"
        ours |= require_version(sglang, cfg.server.allow_untested)
    if capture is not None:
        folders.append(patch_folder("capture_report"))
        ours[CAPTURE_FOLDER] = str(capture)
    if folders:
        ours[PATH] = os.pathsep.join(map(str, folders))
    fixed = {*ours, DUMP_FOLDER, CAPTURE_FOLDER, ALLOW_UNTESTED, "SGLANG_USE_CPU_ENGINE", PLUGINS} - {PATH}
    for name, value in cfg.server.env.items():
        if name in nccl and nccl[name] != value:
            raise ConfigError(f"server.env.{name}: nccl.{role} sets it too, to {nccl[name]!r}; keep one of them")
        if name in fixed:
            raise ConfigError(f"server.env.{name}: is set by eagle3; remove the key")
        ours[name] = os.pathsep.join((ours[PATH], value)) if name == PATH and folders else str(value)
    several = cfg.server.device == "cpu" and cfg.server.tp > 1
    return {**(_ranks_of_a_cpu(cfg.server.tp) if several else {}), **ours, **nccl}
