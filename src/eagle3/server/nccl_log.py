"""What NCCL says of itself with NCCL_DEBUG=INFO: which settings it read, and what it chose.

Ranks write into one log, and a line may begin in the middle of another's: everything here is searched for, not split.
Read are the lines of NCCL 2.19 to 2.30; NCCL_DEBUG_SUBSYS must have INIT, ENV, P2P and TUNING.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3.server.nccl_names import ALGORITHMS, PROTOCOLS, allowed_in

SUBSYSTEMS = "INIT,ENV,GRAPH,P2P,SHM,NET,TUNING"

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_SET = re.compile(r"\b(NCCL_[A-Z0-9_]+) set by environment to ([^\s]+?)\.?(?=\s|$)")
_CHANNELS = re.compile(r"(\d+) coll channels, .*?(\d+) p2p channels, (\d+) p2p channels per peer")
_VIA = re.compile(
    r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\](?: \[(?:send|receive)\])? "
    r"via ((?:P2P|SHM|NET|COLLNET)[^\s]*(?: pointer)?)"
)
_CHOICE = re.compile(r"\b([A-Z][A-Za-z]+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
_RANKS = re.compile(r"nranks (\d+)", re.IGNORECASE)
_IGNORED = re.compile(r"(NCCL_[A-Z0-9_]+)[^\n]*?(?:ignor|invalid|unknown)[^\n]*", re.IGNORECASE)
_SILENT = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
"""Read without a word."""
_HEARD = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
"""Values of NCCL_DEBUG with which NCCL says its version, if nothing else."""
UNUSED = "NCCL was not used (one GPU, or a CPU)"


@dataclass
class NcclReport:
    """What a server's log says of NCCL; empty where NCCL did nothing, as with one GPU."""

    version: str | None = None
    ranks: int = 0
    read: dict[str, str] = field(default_factory=dict)
    """Settings that NCCL took from the environment."""
    channels: list[int] = field(default_factory=list)
    """Channels of collectives, of each communicator."""
    p2p_channels: list[int] = field(default_factory=list)
    transports: list[str] = field(default_factory=list)
    """P2P/CUMEM, SHM/direct, NET/IB/0, ..."""
    choices: dict[str, list[str]] = field(default_factory=dict)
    """Collective -> "Ring/LL up to 65536 B", ...: each algorithm and protocol with the largest message it was for."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Variable -> NCCL's own words on why it is not followed."""


def parse(log: str) -> NcclReport:
    """Everything that the log tells, over all ranks and communicators."""
    report = NcclReport()
    if (version := _VERSION.search(log)) is not None:
        report.version = version[1]
    report.ranks = max((int(found[1]) for found in _RANKS.finditer(log)), default=0)
    report.read = dict(sorted({found[1]: found[2] for found in _SET.finditer(log)}.items()))
    channels = list(_CHANNELS.finditer(log))
    report.channels = sorted({int(found[1]) for found in channels})
    report.p2p_channels = sorted({int(found[2]) for found in channels})
    report.transports = sorted({found[1] for found in _VIA.finditer(log)})
    largest: dict[tuple[str, str], int] = {}
    for found in _CHOICE.finditer(log):
        key = found[1], f"{_named(found[3], ALGORITHMS)}/{_named(found[4], PROTOCOLS)}"
        largest[key] = max(largest.get(key, 0), int(found[2]))
    for (collective, chosen), size in sorted(largest.items(), key=lambda item: (item[0][0], item[1])):
        report.choices.setdefault(collective, []).append(f"{chosen} up to {size} B")
    report.refusals = {found[1]: found[0].strip() for found in _IGNORED.finditer(log)}
    return report


def not_followed(env: Mapping[str, str], report: NcclReport) -> list[str]:
    """Settings of a profile that NCCL did not read, or did otherwise; one sentence each."""
    if not env or report.version is None:
        return []
    found = [f"{name}={env[name]}: {words}" for name, words in report.refusals.items() if name in env]
    found += [
        f"{name}={value}: NCCL does not say that it read it"
        for name, value in env.items()
        if name not in report.read and name not in report.refusals and name not in _SILENT
    ]
    for at, (name, known) in enumerate((("NCCL_ALGO", ALGORITHMS), ("NCCL_PROTO", PROTOCOLS))):
        wrong: set[str] = set()
        for collective, items in report.choices.items() if name in env else ():
            used = {item.split(" ")[0].split("/")[at] for item in items}
            wrong |= (used & set(known)) - allowed_in(env[name], known, collective)
        if wrong:
            found.append(f"{name}={env[name]}: NCCL used {', '.join(sorted(wrong))} too")
    channels = report.channels
    if (most := env.get("NCCL_MAX_NCHANNELS")) is not None and any(count > int(most) for count in channels):
        found.append(f"NCCL_MAX_NCHANNELS={most}: NCCL took {max(channels)} channels")
    if (least := env.get("NCCL_MIN_NCHANNELS")) is not None and any(count < int(least) for count in channels):
        found.append(f"NCCL_MIN_NCHANNELS={least}: NCCL took {min(channels)} channels")
    off = env.get("NCCL_P2P_DISABLE") == "1" or env.get("NCCL_P2P_LEVEL", "").upper() in ("LOC", "0")
    if off and any(transport.startswith("P2P") for transport in report.transports):
        found.append("NCCL_P2P_*: NCCL used P2P although it is off")
    return found


def unused(told: Mapping[str, Any]) -> bool:
    """Whether NCCL did nothing: it was to say what it does, and said nothing.

    Args:
        told: what is in the nccl.json of a measurement.
    """
    seen = told.get("environment") or {}
    heard = str(seen.get("NCCL_DEBUG")).upper() in _HEARD and "NCCL_DEBUG_FILE" not in seen
    return heard and "version" in told and told["version"] is None


def _named(word: str, names: tuple[str, ...]) -> str:
    """As in the configuration: older versions write numbers, newer ones capitals."""
    if word.isdecimal():
        return names[int(word)] if int(word) < len(names) else word
    word = word.replace("_", "")
    return next((name for name in names if name.upper() == word.upper()), word)
