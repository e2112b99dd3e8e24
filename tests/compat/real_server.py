"""The dump with an SGLang of another environment, by hand: each takes 10 GB, and several server starts.

    EAGLE3_SERVER_PYTHON=/path/to/env/bin/python .venv/bin/python -m pytest tests/compat/real_server.py -n 0

Not collected by `make test`, which runs the same checks with the installed version in tests/e2e/. How such an
environment is made for each version: docs/sglang.md.
"""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.e2e import dumping
from tests.e2e.dumping import SAMPLES, DumpTests, Served, require_states_of_transformers, serve
from tests.e2e.models import build, tiny_deepseek, tiny_llama, tiny_qwen3
from tests.e2e.placing import place

from eagle3.config.schema import Config
from eagle3.server.arguments import installed
from eagle3.server.client import Client
from eagle3.server.flags import server_command
from eagle3.server.launch import Server
from eagle3.server.required import effective_flags

PYTHON = os.environ.get("EAGLE3_SERVER_PYTHON")
MODELS = {
    "llama": (tiny_llama, [1, 3, 5], 1),
    "qwen3": (tiny_qwen3, [1, 3, 5], 1),
    "deepseek": (tiny_deepseek, [1, 3, 4], 1),
    "llama by two ranks": (tiny_llama, [1, 3, 5], 2),
    "deepseek by two ranks": (tiny_deepseek, [1, 3, 4], 2),
}


@pytest.fixture(scope="module", params=list(MODELS))
def served(request, tmp_path_factory) -> Iterator[Served]:
    make, boundaries, ranks = MODELS[request.param]
    ours = dumping.config

    def theirs(*args, **kwargs) -> Config:
        cfg = ours(*args, **kwargs)
        cfg.server.python = PYTHON
        return cfg

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dumping, "config", theirs)
        yield from serve(make, boundaries, tmp_path_factory.mktemp("served"), dumping.on_cpu(ranks))


class TestDump(DumpTests):
    """Every model."""

    def test_what_is_effective_is_what_a_dump_needs(self, served: Served) -> None:
        info = httpx.get(f"{served.server.url}/server_info", timeout=60.0).json()
        flags = effective_flags(served.server.command.flags, info)
        assert info["version"] == served.server.command.sglang_version
        assert flags["disable_radix_cache"] is True
        assert flags["skip_server_warmup"] is True
        assert flags["enable_flashinfer_allreduce_fusion"] is False
        assert flags.get("flashinfer_allreduce_fusion_backend") is None
        graphs = flags.get("cuda_graph_config")
        if graphs is None:  # up to 0.5.13
            assert flags["disable_cuda_graph"] is True
            assert flags.get("disable_piecewise_cuda_graph", True) is True
        else:
            assert (graphs["decode"]["backend"], graphs["prefill"]["backend"]) == ("disabled", "disabled")


def test_two_replicas_write_a_stream_each(tmp_path: Path) -> None:
    model, boundaries = build(tiny_llama(), tmp_path / "model"), [1, 3, 5]
    placed = place(tmp_path / "data", dumping.prompts(), boundaries, 64, shards=3)
    cfg = dumping.config(tmp_path / "model")
    cfg.server.python = PYTHON
    cfg.server.flags.common = {"dp_size": 2}
    version = installed(PYTHON).version
    if [int(part) for part in re.findall(r"\d+", version)] >= [0, 5, 19]:  # from here on it counts replicas too
        cfg.server.env["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"
    command = server_command(cfg, "extraction", tmp_path / "model", dump=placed.work)

    async def send(url: str) -> None:
        async with Client(url, concurrency=16) as client:
            for sample in SAMPLES:
                await client.prefill([placed.sequences[sample]], [placed.rid(sample)])

    with Server.start(command, log=tmp_path / "server.log", timeout_s=900, work=placed.work) as server:
        assert [ready["streams"] for ready in server.ready] == [2, 2]
        asyncio.run(send(server.url))
        deadline = time.monotonic() + 60
        while len(placed.ledger()) < len(SAMPLES):
            assert time.monotonic() < deadline, server.dump_status()
            time.sleep(0.1)
    assert all(path.read_text() for path in placed.work.glob("ledger-*.jsonl"))
    for sample in SAMPLES:
        require_states_of_transformers(model, boundaries, placed.sequences[sample], placed.read(sample))
