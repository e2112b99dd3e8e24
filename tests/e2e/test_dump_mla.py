"""The dump of latent attention and routed experts: DeepSeek-V3, and Kimi-K2.5 with a DeepSeek-V3 inside.

Kimi-K2.5 goes through a whole extraction, its proof included: the output head is found inside the wrapper's weights.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.dumping import CHUNK, LENGTHS, DumpTests, Served, passes, require_states_of_transformers, serve
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
    yield from serve(tiny_deepseek, [1, 3, 4], tmp_path_factory.mktemp("deepseek"))


class TestDump(DumpTests):
    """DeepSeek-V3."""


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
