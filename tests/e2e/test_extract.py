"""Extraction through a real SGLang server on the CPU: right, whoever knocks. By two replicas of the target, which write
side by side; most other tests have one.
"""

import os
import re
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from tests.e2e.extraction import (
    BOUNDARIES,
    At,
    Quiet,
    Setting,
    expected_states,
    lengths,
    own_process,
    write_prompts,
)
from tests.e2e.models import build, tiny_llama
from transformers import PreTrainedModel

from eagle3.data import meter
from eagle3.data.extract import run_extraction
from eagle3.data.shards import HiddenStates
from eagle3.data.verify import verify
from eagle3.errors import DataError
from eagle3.server.flags import RESERVED_TOKENS

pytestmark = pytest.mark.e2e
COUNT = 60


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extract")


@pytest.fixture(scope="module")
def model(root: Path) -> PreTrainedModel:
    return build(tiny_llama(), root / "model")


@pytest.fixture(scope="module")
def prompts(root: Path) -> list[torch.Tensor]:
    longest = tiny_llama().max_position_embeddings - RESERVED_TOKENS
    return write_prompts(root / "prompts", lengths(COUNT, longest))


@pytest.fixture(scope="module")
def setting(root: Path, model: PreTrainedModel, prompts: list[torch.Tensor]) -> Setting:
    # SGLang would ask for a NUMA node for each.
    setting = Setting(root, env={"SGLANG_CPU_OMP_THREADS_BIND": "all|all"})
    setting.config.server.flags.common = {"dp_size": 2}
    return setting


@pytest.fixture(scope="module")
def whole(setting: Setting) -> tuple[HiddenStates, Quiet]:
    """Extracted while others knock: a client of the same server, and a second extraction into the folder."""
    reporter = At(1, lambda: intrude(setting))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meter, "PERIOD_S", 0.0)  # all of it may take less than a second
        setting.extract("whole", reporter)
    assert reporter.action is None, "nobody intruded"
    return HiddenStates(setting.root / "whole"), reporter


def intrude(setting: Setting) -> None:
    with pytest.raises(DataError, match=rf"whole is being made by process {os.getpid()} on .* already"):
        setting.extract("whole")
    titles = {process.name() for process in psutil.Process().children(recursive=True)}
    assert titles >= {"sglang::scheduler_DP0", "sglang::scheduler_DP1", "sglang::detokenizer"}, "see server/parts.py"
    line = own_process("launch_server").cmdline()
    url = f"http://127.0.0.1:{line[line.index('--port') + 1]}/generate"
    for rid in ("mine", "eagle3-00000000-10", "eagle3-"):  # 10 is a sequence of the dataset; the nonce is another's
        asked = {"input_ids": [7, 8, 9, 10, 11], "rid": rid, "sampling_params": {"max_new_tokens": 2}}
        assert len(httpx.post(url, json=asked, timeout=60.0).json()["output_ids"]) == 2


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def test_states_are_those_of_transformers(
    model: PreTrainedModel, prompts: list[torch.Tensor], whole: tuple[HiddenStates, Quiet]
) -> None:
    """From one token to the context's limit, whole and in chunks, and nobody else's: what another client asked for is
    nowhere."""
    data, _ = whole
    assert data.lengths.tolist() == [len(ids) for ids in prompts]
    assert data.sample_ids.tolist() == [10 + 2 * i for i in range(COUNT)]
    for i, ids in enumerate(prompts):
        expected = expected_states(model, ids)
        got = data.read(i, ["input_ids", "loss_mask", *expected])
        assert got["input_ids"].tolist() == ids.tolist()
        assert got["loss_mask"].tolist() == [t % 2 for t in range(len(ids))]
        for state, rows in expected.items():
            assert relative_error(got[state], rows) < 0.03, (i, state)


def test_a_finished_dataset_is_whole_and_says_how_it_was_made(
    setting: Setting, whole: tuple[HiddenStates, Quiet]
) -> None:
    data, reporter = whole
    assert not list(verify(data.folder))
    assert not (data.folder / "work").exists()
    manifest = data.manifest
    assert manifest.complete
    assert len(manifest.shards) > 2
    assert manifest.server_flags["disable_radix_cache"] is True
    assert manifest.server_flags["chunked_prefill_size"] == 128
    assert manifest.server_flags["skip_server_warmup"] is True
    assert manifest.server_flags["enforce_disable_flashinfer_allreduce_fusion"] is True
    assert manifest.server_flags["flashinfer_allreduce_fusion_backend"] is None
    for phase in ("decode", "prefill"):
        assert manifest.server_flags[f"cuda_graph_backend_{phase}"] == "disabled"
        assert manifest.server_flags["cuda_graph_config"][phase]["backend"] == "disabled"
    assert manifest.target["fingerprint"] == setting.target.fingerprint
    assert manifest.proof["start"]["sequences"] == 8
    assert manifest.proof["end"]["max_ratio"] < 2
    assert {"unit", "tokens_per_s", "gb", "queue", "stalls", "free_gib"} <= set(reporter.bars[-1])
    assert reporter.rows[-1]["extract/sequences"] == COUNT
    assert not psutil.Process().children(recursive=True)
    notes = len(reporter.notes)
    assert setting.extract("whole", reporter) == manifest, "nothing is left to do"
    assert len(reporter.notes) == notes


def test_both_replicas_had_a_part(setting: Setting, whole: tuple[HiddenStates, Quiet]) -> None:
    assert whole[0].manifest.server_flags["dp_size"] == 2
    log = (setting.root / "logs" / "whole" / "server.log").read_text()
    passes = re.findall(r" DP(\d)\] Prefill batch.*?#new-token: (\d+)", log)
    computed = [sum(int(count) for rank, count in passes if rank == one) for one in ("0", "1")]
    assert min(computed) > sum(computed) / 4


def test_another_extraction_in_the_folder_is_refused(setting: Setting, whole: tuple[HiddenStates, Quiet]) -> None:
    write_prompts(setting.root / "others", lengths(COUNT), seed=1)
    folder = whole[0].folder
    with pytest.raises(DataError, match="holds another extraction: its prompts_fingerprint"):
        run_extraction(
            setting.config, setting.target, setting.root / "others", folder, BOUNDARIES, Quiet(), setting.root / "logs"
        )
    assert HiddenStates(folder).manifest.complete
