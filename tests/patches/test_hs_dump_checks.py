"""What the plugin refuses, by SGLang's version and by what its arguments came to."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from eagle3_hs_dump import DumpError
from eagle3_hs_dump.checks import check_arguments, check_version, effective, streams
from tests.e2e.models import tiny_llama

from eagle3.server.patches import patch_folder

OFF = SimpleNamespace(decode=SimpleNamespace(backend="disabled"), prefill=SimpleNamespace(backend="disabled"))
FITTING: dict[str, dict[str, Any]] = {
    "0.5.9": {"disable_cuda_graph": True, "enable_piecewise_cuda_graph": False},
    "0.5.11": {"disable_cuda_graph": True, "disable_piecewise_cuda_graph": True},
    "0.5.17": {"disable_cuda_graph": False, "cuda_graph_config": OFF, "flashinfer_allreduce_fusion_backend": None},
    "0.5.23": {"cuda_graph_config": {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}}},
}
"""Stand-ins for the arguments of a version, whose environments take 10 GB each; tests/compat holds the names against
its source, and tests/compat/real_server.py the plugin against the server itself."""
COMMON = {
    "disable_radix_cache": True,
    "pp_size": 1,
    "attn_cp_size": 1,
    "dp_size": 1,
    "enable_two_batch_overlap": False,
    "enable_flashinfer_allreduce_fusion": False,
    "speculative_algorithm": None,
}


def arguments(version: str, **changed: Any) -> dict[str, Any]:
    return {**COMMON, **FITTING[version], **changed}


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.17", "0.5.23"])
def test_tested_versions_are_taken(version):
    check_version(version)


@pytest.mark.parametrize("version", ["0.5.8.post1", "0.5.24", "0.6.0"])
def test_other_versions_are_refused_with_the_range(version, monkeypatch):
    with pytest.raises(DumpError, match=r"0\.5\.9 to 0\.5\.23"):
        check_version(version)
    monkeypatch.setenv("SGLANG_HS_DUMP_ALLOW_UNTESTED", "1")
    check_version(version)


@pytest.mark.parametrize("version", list(FITTING))
def test_what_eagle3_sets_is_taken(version):
    check_arguments(arguments(version))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"pp_size": 2}, "pipeline parallelism"),
        ({"attn_cp_size": 2}, "context parallelism"),
        ({"dcp_size": 2}, "decode context parallelism"),
        ({"enable_prefill_cp": True}, "context parallelism"),
        ({"enable_nsa_prefill_context_parallel": True}, "context parallelism"),
        ({"enable_two_batch_overlap": True}, "two-batch overlap"),
        ({"enable_layernorm_sp": True}, "sequence parallelism"),
        ({"speculative_algorithm": "EAGLE3"}, "speculative decoding"),
        ({"enable_flashinfer_allreduce_fusion": True}, "partial sums"),
        ({"flashinfer_allreduce_fusion_backend": "auto"}, "partial sums"),
        ({"enable_aiter_allreduce_fusion": True}, "all-reduce fusion"),
        ({"disable_radix_cache": False}, "radix cache"),
    ],
)
def test_what_would_break_a_dump_is_refused_whatever_the_version(changed, reason):
    for version in FITTING:
        with pytest.raises(DumpError, match=f"cannot be dumped with.*{reason}"):
            check_arguments(arguments(version, **changed))


@pytest.mark.parametrize(
    ("version", "changed", "what"),
    [
        ("0.5.9", {"disable_cuda_graph": False}, "disable_cuda_graph is off"),
        ("0.5.9", {"enable_piecewise_cuda_graph": True}, "enable_piecewise_cuda_graph is on"),
        ("0.5.11", {"disable_piecewise_cuda_graph": False}, "disable_piecewise_cuda_graph is off"),
        (
            "0.5.17",
            {"cuda_graph_config": SimpleNamespace(decode=OFF.decode, prefill=SimpleNamespace(backend="breakable"))},
            r"cuda_graph_config\.prefill\.backend is breakable",
        ),
        (
            "0.5.23",
            {"cuda_graph_config": {"decode": {"backend": "full"}, "prefill": {"backend": "disabled"}}},
            r"cuda_graph_config\.decode\.backend is full",
        ),
    ],
)
def test_graphs_that_are_on_are_refused_by_their_name(version, changed, what):
    with pytest.raises(DumpError, match=what):
        check_arguments(arguments(version, **changed))


def test_fusion_that_prefill_does_not_use_is_taken():
    check_arguments(
        arguments("0.5.23", enable_aiter_allreduce_fusion=True, disable_aiter_allreduce_fusion_in_prefill=True)
    )


def test_one_stream_for_each_replica_and_attention_group():
    assert streams(arguments("0.5.17")) == 1
    assert streams(arguments("0.5.17", dp_size=4)) == 4
    assert streams(arguments("0.5.23", dp_size=1, attn_dp_size=4)) == 4
    assert streams(arguments("0.5.23", dp_size=2, attn_dp_size=2)) == 4


def test_arguments_are_what_they_came_to_and_not_what_was_asked_for():
    asked = SimpleNamespace(attn_cp_size=1, resolved_dict=lambda: {"attn_cp_size": 2})
    assert effective(asked)["attn_cp_size"] == 2
    assert effective(SimpleNamespace(attn_cp_size=1))["attn_cp_size"] == 1


REAL = """
import sys
from eagle3_hs_dump.checks import check_arguments, effective, streams
from sglang.srt.server_args import prepare_server_args

needed = ["--disable-radix-cache", "--skip-tokenizer-init", "--enforce-disable-flashinfer-allreduce-fusion"]
needed += ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]
for more in sys.argv[2:]:
    arguments = prepare_server_args(["--model-path", sys.argv[1], "--device", "cpu", *needed, *more.split()])
    arguments.resolve_once()  # as the server does before it starts its processes
    try:
        check_arguments(effective(arguments))
        print("SAID", streams(effective(arguments)))
    except Exception as error:
        print("SAID", error)
"""


def test_the_arguments_of_the_installed_version_are_read_as_the_server_takes_them(tmp_path):
    """The real ServerArgs, after what SGLang itself makes of them."""
    config = tiny_llama()
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    said = {
        "--tp-size 1": "1",
        "--dp-size 2": "2",
        "--tp-size 4 --attn-dp-size 2": "2",
        "--tp-size 4 --dp-size 2 --enable-dp-attention": "2",
        "--pp-size 2": "pipeline parallelism",
        "--tp-size 2 --attn-cp-size 2": "context parallelism",
        "--enable-two-batch-overlap": "two-batch overlap",
    }
    folders = [str(patch_folder(name)) for name in ("hs_dump", "cpu_kernels")]
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path), *said],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.removeprefix("SAID ") for line in done.stdout.splitlines() if line.startswith("SAID ")]
    for line, wanted in zip(lines, said.values(), strict=True):
        assert line == wanted or (not wanted.isdigit() and wanted in line), lines


def test_the_launcher_of_old_versions_leaves_newer_ones_alone():
    """The installed one loads plugins by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "eagle3_hs_dump.launch"],
        cwd=patch_folder("hs_dump"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "start it with `python -m sglang.launch_server`" in done.stderr
