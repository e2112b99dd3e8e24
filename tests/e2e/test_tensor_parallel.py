"""The dump of a target that is spread over two ranks: against transformers, and against the dump of one rank. Qwen3.

On the CPU, where the ranks are two of SGLang's scheduler processes that add up through gloo; and on two GPUs where
there are two. The dump of one rank on the CPU is also what tests Qwen3 as such.
"""

import json
import re
from collections.abc import Iterator

import pytest
import torch
from tests.e2e.dumping import CHUNK, SAMPLES, DumpTests, Served, every_length, on_cpu, row_errors, serve
from tests.e2e.models import tiny_qwen3

from eagle3.config.schema import ServerConfig, ServerFlags

pytestmark = pytest.mark.e2e
BOUNDARIES = [1, 3, 5]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def on_gpus(count: int) -> ServerConfig:
    """With back-ends that compile nothing at their first use but Triton's kernels."""
    common = {"attention_backend": "triton", "sampling_backend": "pytorch", "grammar_backend": "none"}
    # A tiny model leaves room for so many tokens that SGLang's own tables of them no longer fit.
    common |= {"max_total_tokens": 65536, "mem_fraction_static": 0.5}
    flags = ServerFlags(common=common, extraction={"chunked_prefill_size": CHUNK})
    return ServerConfig(device="cuda", tp=count, flags=flags, env={"NCCL_NVLS_ENABLE": "0"})


SERVERS = {"cpu": on_cpu, "cuda": on_gpus}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=two_gpus)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def one(device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(tiny_qwen3, BOUNDARIES, tmp_path_factory.mktemp("one"), SERVERS[device](1))


@pytest.fixture(scope="module")
def two(device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(tiny_qwen3, BOUNDARIES, tmp_path_factory.mktemp("two"), SERVERS[device](2))


def ranks_with_weights(served: Served) -> list[str]:
    """From the server's log, where lines of a rank say which it is if there are several."""
    return sorted(re.findall(r" TP(\d+)\] Load weight end", served.log.read_text()))


class TestOneRank(DumpTests):
    """As most extractions are."""

    @pytest.fixture
    def served(self, one: Served) -> Served:
        return one

    def test_it_is_alone(self, one: Served) -> None:
        assert "Load weight end" in one.log.read_text()
        assert ranks_with_weights(one) == []


class TestTwoRanks(DumpTests):
    """Each has half of the heads, of the MLP and of the vocabulary; what comes out must be whole all the same."""

    @pytest.fixture
    def served(self, two: Served) -> Served:
        return two

    def test_both_load_weights_and_the_first_alone_writes(self, two: Served) -> None:
        assert ranks_with_weights(two) == ["0", "1"]
        titles = {process.pid: process.name() for process in two.server.tree.members()}
        schedulers = {title[-3:]: pid for pid, title in titles.items() if "scheduler_TP" in title}
        assert sorted(schedulers) == ["TP0", "TP1"]
        (status,) = two.placed.work.glob("status-*.json")  # of the only stream: what is in the ledger is its own
        written = json.loads(status.read_text())
        assert (written["pid"], written["sequences"]) == (schedulers["TP0"], len(SAMPLES))
        assert [ready["pid"] for ready in two.server.ready] == [schedulers["TP0"]]

    @every_length
    def test_rows_are_those_of_one_rank(self, one: Served, two: Served, sample: int) -> None:
        """Each row, to the noise of bfloat16; at the next boundary every row is further away than this."""
        ours, theirs = two.placed.read(sample), one.placed.read(sample)
        assert list(ours) == list(theirs)
        for name, state in ours.items():
            errors = row_errors(state, theirs[name])
            assert errors.median() < 0.03, f"{name}: median error {errors.median():.3f}"
            assert errors.max() < 0.2, f"{name}: row {errors.argmax()} is off by {errors.max():.3f}"

    def test_each_has_a_part_of_the_weights(self, one: Served, two: Served) -> None:
        """Sums of two rounded halves are not quite the whole sums, so the numbers differ; one rank's never do.

        Had each all of the weights, their sums would be twice what they should be, and no row near.
        """
        sample = SAMPLES[4]  # computed whole and alone, so in the same way by both
        whole = one.placed.read(sample)
        for name, state in two.placed.read(sample).items():
            assert (state == whole[name]).float().mean() < 0.9, name
