"""The dump of a target that is spread over two GPUs: against transformers, and against the dump of one GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.e2e.dumping import CHUNK, SAMPLES, DumpTests, Served, row_errors, serve
from tests.e2e.models import tiny_llama

from eagle3.config.schema import ServerConfig, ServerFlags

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]
BOUNDARIES = [1, 3, 5]


def on_gpus(count: int) -> ServerConfig:
    """With back-ends that compile nothing at their first use but Triton's kernels."""
    common = {"attention_backend": "triton", "sampling_backend": "pytorch", "grammar_backend": "none"}
    # A tiny model leaves room for so many tokens that SGLang's own tables of them no longer fit.
    common |= {"max_total_tokens": 65536, "mem_fraction_static": 0.5}
    flags = ServerFlags(common=common, extraction={"chunked_prefill_size": CHUNK})
    return ServerConfig(device="cuda", tp=count, flags=flags, env={"NCCL_NVLS_ENABLE": "0"})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(tiny_llama, BOUNDARIES, tmp_path_factory.mktemp("two"), on_gpus(2))


class TestTwoGpus(DumpTests):
    """Rank 0 writes, once."""


def test_two_gpus_give_what_one_gives(served: Served, tmp_path: Path) -> None:
    for alone in serve(tiny_llama, BOUNDARIES, tmp_path, on_gpus(1)):
        for sample in SAMPLES:
            ours, theirs = served.placed.read(sample), alone.placed.read(sample)
            for name, state in ours.items():
                errors = row_errors(state, theirs[name])
                assert errors.median() < 0.02, f"sample {sample}, {name}: median error {errors.median():.3f}"
