"""The dump of latent attention and routed experts: DeepSeek-V3, and Kimi-K2.5 with a DeepSeek-V3 inside.

DeepSeek-V3 as it is commonly served, with DP attention: each of two ranks has the whole attention and requests of its
own, and half of each expert. Kimi-K2.5 on one rank goes through a whole extraction, its proof included: the output head
is found inside the wrapper's weights.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.dumping import (
    CHUNK,
    LENGTHS,
    SAMPLES,
    WHOLE,
    DumpTests,
    Served,
    on_cpu,
    passes,
    require_states_of_transformers,
    serve,
)
from tests.e2e.extraction import BOUNDARIES, Quiet, cpu_config, write_prompts
from tests.e2e.kimi import PREFIX, build_kimi
from tests.e2e.models import tiny_deepseek
from torch import Tensor
from transformers import PreTrainedModel

from eagle3.data.extract import run_extraction
from eagle3.data.shards import HiddenStates
from eagle3.data.verify import verify
from eagle3.target import TargetInfo, load_embedding, load_lm_head, read_info

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    # DeepSeek's setter takes 0, 2, 3 as they are: what it sets is wrong and has to be corrected.
    yield from serve(tiny_deepseek, [1, 3, 4], tmp_path_factory.mktemp("deepseek"), on_cpu(2, attn_dp_size=2))


class TestDump(DumpTests):
    """DeepSeek-V3. What one rank computes, the other joins in with an empty batch when it has nothing to do."""

    def test_the_plugin_reports_what_it_captures(self, served: Served) -> None:
        ready = sorted(served.server.ready, key=lambda one: one["rank"])
        assert [(one["rank"], one["dp_rank"], one["streams"]) for one in ready] == [(0, 0, 2), (1, 1, 2)]
        assert all((one["boundaries"], one["hidden_size"]) == (served.boundaries, 64) for one in ready)

    def test_each_rank_writes_its_own_requests_and_empty_batches_leave_nothing(self, served: Served) -> None:
        """The prompts that are sent one by one go to the ranks in turn, so that each of them has empty batches."""
        written = [json.loads(path.read_text()) for path in served.placed.work.glob("status-*.json")]
        assert sorted(one["pid"] for one in written) == sorted(one["pid"] for one in served.server.ready)
        for one in written:
            assert one["sequences"] > len(SAMPLES) // 3
            assert one["boundaries_compared"] >= 2 * len(served.boundaries)  # of the passes of one prompt alone
        assert sum(one["tokens"] for one in written) == sum(LENGTHS)
        ledgers = [path.read_text().splitlines() for path in served.placed.work.glob("ledger-*.jsonl")]
        assert sorted(map(len, ledgers)) == sorted(one["sequences"] for one in written)
        alone = [{json.loads(line)["id"] for line in lines} & set(SAMPLES[: len(WHOLE)]) for lines in ledgers]
        assert sorted(map(sorted, alone)) == [SAMPLES[0 : len(WHOLE) : 2], SAMPLES[1 : len(WHOLE) : 2]]

    def test_who_deals_out_requests_waits_for_them(self, served: Served) -> None:
        """By itself it would take a core."""
        (controller,) = (one for one in served.server.tree.members() if "data_parallel_cont" in " ".join(one.cmdline()))
        began = controller.cpu_times()
        time.sleep(1.0)
        used = controller.cpu_times()
        assert used.user + used.system - began.user - began.system < 0.3


class Kimi:
    """A dataset of the tiny Kimi-K2.5, whose boundaries are those that DeepSeek's setter gets wrong."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.text_model: PreTrainedModel = build_kimi(root / "model")
        self.info: TargetInfo = read_info(root / "model", text_prefix=PREFIX, trust_remote_code=True)
        self.prompts: list[Tensor] = write_prompts(root / "prompts", LENGTHS)
        config = cpu_config(root / "model", env={"HF_MODULES_CACHE": str(root / "modules")})
        config.target.text_prefix, config.target.trust_remote_code = PREFIX, True
        config.server.flags.extraction["chunked_prefill_size"] = CHUNK
        run_extraction(config, self.info, root / "prompts", root / "out", BOUNDARIES, Quiet(), root / "logs")
        self.data = HiddenStates(root / "out")


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Kimi:
    return Kimi(tmp_path_factory.mktemp("kimi"))


@pytest.mark.parametrize("i", range(len(LENGTHS)), ids=[f"{i}-{length}-tokens" for i, length in enumerate(LENGTHS)])
def test_states_of_kimi_are_those_of_transformers_deepseek(kimi: Kimi, i: int) -> None:
    stored = kimi.data.read(i, list(kimi.data.manifest.states))
    require_states_of_transformers(kimi.text_model, BOUNDARIES, kimi.prompts[i].tolist(), stored)


def test_the_proof_of_kimi_used_the_wrapper_s_own_head(kimi: Kimi) -> None:
    assert (kimi.info.text_prefix, kimi.info.num_layers, kimi.info.head_dim) == (PREFIX, 6, 16)
    assert kimi.info.lm_head_key == "language_model.lm_head.weight"
    assert load_lm_head(kimi.info).equal(kimi.text_model.get_output_embeddings().weight)
    assert load_embedding(kimi.info).equal(kimi.text_model.get_input_embeddings().weight)
    proof = kimi.data.manifest.proof
    assert proof["start"]["sequences"] == 8
    assert max(proof["start"]["max_ratio"], proof["end"]["max_ratio"]) < 2
    assert not list(verify(kimi.data.folder))


def test_prompts_of_kimi_were_computed_whole_and_in_chunks(kimi: Kimi) -> None:
    """The proof sends prompts alone; the rest goes eight at a time."""
    counts = passes(kimi.root / "logs" / "server.log")
    assert counts.count(CHUNK) >= sum(LENGTHS) // CHUNK - len(LENGTHS)
    assert any(counts.count(length) for length in LENGTHS if length < CHUNK)
