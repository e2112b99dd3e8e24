"""NCCL profiles: what is refused, and what the log of a real NCCL says of the rest."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3.config.schema import NcclProfile
from eagle3.errors import ConfigError
from eagle3.server.nccl import inherited, profile_env, profile_name
from eagle3.server.nccl_log import NcclReport, not_followed, parse, unused


def env_of(**env: str) -> dict[str, str]:
    return profile_env(NcclProfile("p", env), "nccl.serving")


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"NCCL_PROT": "LL"}, "nccl.serving.env.NCCL_PROT: no NCCL variable is called so; did you mean NCCL_PROTO"),
        ({"NCCL_PROTO": "LL64"}, "LL64 is not one of LL, LL128, Simple"),
        ({"NCCL_PROTO": "LL,"}, "NCCL_PROTO=LL,: nothing"),
        ({"NCCL_ALGO": "Tree"}, "leaves AllGather without an algorithm"),
        ({"NCCL_ALGO": "^Ring,NVLS,PAT,CollnetDirect"}, "leaves AllGather without an algorithm"),
        ({"NCCL_ALGO": "PAT"}, "leaves AllReduce without an algorithm"),
        ({"NCCL_ALGO": "Rings"}, "Rings is not one of Tree, Ring"),
        ({"NCCL_P2P_LEVEL": "NVLINK"}, "is not one of LOC"),
        ({"NCCL_NTHREADS": "500"}, "64, 128, 256, 512"),
        ({"NCCL_MAX_NCHANNELS": "128"}, "from 1 to 64"),
        ({"NCCL_BUFFSIZE": "16M"}, "a number of bytes from 1 to"),
        ({"NCCL_BUFFSIZE": "99999999999999"}, "a number of bytes from 1 to 2147483647"),
        ({"NCCL_PROTO": "^LL,LL128,Simple"}, "without a protocol"),
        ({"NCCL_NVLS_ENABLE": "off"}, "whole number"),
        ({"NCCL_P2P_DISABLE": "yes"}, "must be 0 or 1"),
        ({"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "8"}, "is more than NCCL_MAX_NCHANNELS=8"),
        ({"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "0"}, "NCCL_ALGO=NVLS with NCCL_NVLS_ENABLE=0; keep one"),
        ({"NCCL_ALGO": "allreduce:NVLS", "NCCL_NVLS_ENABLE": "0"}, "NCCL_ALGO=allreduce:NVLS with NCCL_NVLS_ENABLE=0;"),
        ({"NCCL_ALGO": "NVLS"}, "NCCL_NVLS_ENABLE=0, which SGLang sets where nothing else does"),
    ],
)
def test_what_nccl_would_ignore_or_refuse_is_refused(env: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        env_of(**env)


def test_what_nccl_takes_is_taken() -> None:
    env_of(NCCL_PROTO="^LL,LL128", NCCL_ALGO="allreduce:ring,tree;broadcast:ring", NCCL_P2P_LEVEL="nvl")
    env_of(NCCL_ALGO="allreduce:Tree")
    env_of(NCCL_ALGO="Ring;AllReduce:Tree,NVLSTree")
    env_of(NCCL_ALGO="Collnet")
    env_of(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,ENV", NCCL_NTHREADS="512", NCCL_CUMEM_ENABLE="-2")


def test_what_the_shell_sets_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server has both: the profile's, and what the shell sets beside them."""
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    with pytest.raises(ConfigError, match=r"NCCL_P2P_DISABLE=1, in part from the shell \(NCCL_P2P_DISABLE\): unset it"):
        env_of(NCCL_P2P_LEVEL="NVL")
    assert env_of(NCCL_PROTO="LL") == {"NCCL_PROTO": "LL"}
    assert inherited({"NCCL_PROTO": "LL"})["NCCL_P2P_DISABLE"] == "1"
    assert "NCCL_P2P_DISABLE" not in inherited({"NCCL_P2P_DISABLE": "0"})
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    with pytest.raises(ConfigError, match=r"^NCCL_ALGO=Tree, which the shell sets, leaves AllGather without"):
        env_of()
    env_of(NCCL_ALGO="Ring")
    profile_env(NcclProfile("p", {}), "nccl.serving", ["NCCL_ALGO"])


def test_a_shipped_profile_that_was_changed_is_called_so() -> None:
    assert profile_name(NcclProfile("default", {})) == "default"
    assert profile_name(NcclProfile("default", {"NCCL_PROTO": "LL"})) == "default, changed"
    assert profile_name(NcclProfile("mine", {"NCCL_PROTO": "LL"})) == "mine"


def test_a_newer_variable_is_taken_when_it_is_named() -> None:
    profile = NcclProfile("p", {"NCCL_OF_NEXT_YEAR": "1"})
    with pytest.raises(ConfigError, match=r"nccl\.extra=\[NCCL_OF_NEXT_YEAR\]"):
        profile_env(profile, "nccl.serving")
    assert profile_env(profile, "nccl.serving", ["NCCL_OF_NEXT_YEAR"]) == {"NCCL_OF_NEXT_YEAR": "1"}


# Lines that NCCL 2.26 wrote on two H100s, as published with a bug report; settings and choices of collectives are as
# NCCL 2.27 and newer write them (its own format strings, see the test below), in the same form.
LOG = """\
host:10208:10208 [0] NCCL INFO NCCL version 2.26.2+cuda12.2
host:10208:10226 [0] NCCL INFO NCCL_PROTO set by environment to LL
host:10208:10226 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 16.
host:10208:10226 [0] NCCL INFO Channel 00/16 : 0 1
host:10209:10227 [1] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer
host:10208:10226 [0] NCCL INFO ncclCommInitRankConfig comm 0x58892 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 100000 - Init COMPLETE
host:10208:10234 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
host:10208:10234 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/host:10209:10235 [1] NCCL INFO Channel 12/0 : 1[1] -> 0[0] via P2P/CUMEM
host:10208:10208 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
host:10208:10208 [0] NCCL INFO AllReduce: 65536 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..15}
host:10208:10208 [0] NCCL INFO AllReduce: 16777216 Bytes -> Algo 1 proto 2 time 123.4
"""  # noqa: E501


def test_what_nccl_chose_is_read_from_its_log() -> None:
    report = parse(LOG)
    assert (report.version, report.ranks, report.channels, report.p2p_channels) == ("2.26.2", 2, [16], [16])
    assert report.read == {"NCCL_MAX_NCHANNELS": "16", "NCCL_PROTO": "LL"}
    assert "P2P/CUMEM" in report.transports
    assert report.choices == {"AllReduce": ["Ring/LL up to 65536 B", "Ring/Simple up to 16777216 B"]}


def test_a_setting_that_nccl_did_not_follow_is_named() -> None:
    report = parse(LOG)
    assert not_followed({"NCCL_PROTO": "LL"}, report) == ["NCCL_PROTO=LL: NCCL used Simple too"]
    assert not_followed({"NCCL_NTHREADS": "512"}, report) == ["NCCL_NTHREADS=512: NCCL does not say that it read it"]
    assert not_followed({"NCCL_MAX_NCHANNELS": "8"}, report) == ["NCCL_MAX_NCHANNELS=8: NCCL took 16 channels"]
    assert not_followed({"NCCL_MAX_NCHANNELS": "16", "NCCL_DEBUG": "INFO"}, report) == []
    assert not_followed({"NCCL_ALGO": "allreduce:Tree"}, replace(report, read={"NCCL_ALGO": "allreduce:Tree"})) == [
        "NCCL_ALGO=allreduce:Tree: NCCL used Ring too"
    ]
    read = replace(report, read={"NCCL_ALGO": "allgather:PAT"})
    assert not_followed({"NCCL_ALGO": "allgather:PAT"}, read) == [], "of AllReduce nothing is said"
    assert not_followed({"NCCL_PROTO": "LL"}, NcclReport()) == [], "one GPU: NCCL has nothing to do"
    words = parse("x NCCL version 2.30.7\nNCCL_WORK_FIFO_BYTES=1000 is being ignored because it is not a power of 2.")
    assert "power of 2" in not_followed({"NCCL_WORK_FIFO_BYTES": "1000"}, words)[0]


def test_the_installed_nccl_still_writes_these_lines() -> None:
    spec = importlib.util.find_spec("nvidia.nccl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("torch without NCCL")
    library = (Path(next(iter(spec.submodule_search_locations))) / "lib" / "libnccl.so.2").read_bytes()
    for text in (
        b"%s set by environment to %lld.",
        b"NCCL_PROTO set by environment to %s",
        b"NCCL_ALGO set by environment to %s",
        b"%d coll channels, %d collnet channels, %d nvls channels, %d p2p channels, %d p2p channels per peer",
        b": %d[%d] -> %d[%d] via P2P/%s%s%s",
        b"%s: %ld Bytes -> Algo %s proto %s channel{Lo..Hi}={%d..%d}",
    ):
        assert text in library, text


@pytest.mark.parametrize(
    ("told", "nothing"),
    [
        ({"version": None, "environment": {"NCCL_DEBUG": "INFO"}}, True),
        ({"version": None, "environment": {"NCCL_DEBUG": "warn"}}, True),
        ({"version": "2.29.7", "environment": {"NCCL_DEBUG": "INFO"}}, False),
        ({"version": None, "environment": {"NCCL_DEBUG": "NONE"}}, False),
        ({"version": None, "environment": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/nccl"}}, False),
        ({"version": None}, False),
        ({}, False),
    ],
)
def test_silence_is_disuse_only_where_nccl_was_to_speak(told: dict[str, Any], nothing: bool) -> None:
    assert unused(told) is nothing
