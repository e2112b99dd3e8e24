"""Extraction into 8 bits through a real SGLang server on the CPU."""

from pathlib import Path

import pytest
import torch
from tests.e2e.extraction import BOUNDARIES, Quiet, Setting, expected_states, lengths, write_prompts
from tests.e2e.models import build, tiny_llama

from eagle3.commands.inspect import run_inspect
from eagle3.data.shards import HiddenStates
from eagle3.data.verify import verify

pytestmark = pytest.mark.e2e


def test_a_dataset_in_8_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Proven, right within the rounding of 8 bits, half as large, and it says what was lost."""
    model = build(tiny_llama(), tmp_path / "model")
    prompts = write_prompts(tmp_path / "prompts", lengths(40))
    setting = Setting(tmp_path)
    setting.config.dataset.dtype = "fp8_e4m3"
    reporter = Quiet()
    manifest = setting.extract("states", reporter)
    data = HiddenStates(tmp_path / "states")
    assert not list(verify(data.folder))
    assert len(data) == 40
    for i, ids in enumerate(prompts):
        expected = expected_states(model, ids)
        for state, rows in data.read(i, list(expected)).items():
            assert rows.dtype == torch.bfloat16
            error = (rows.float() - expected[state].float()).norm() / expected[state].float().norm()
            assert error < 0.05, (i, state)
    assert manifest.dtype == "fp8_e4m3"
    states = len(BOUNDARIES) + 1
    assert manifest.bytes < manifest.tokens * (states * (64 + 4) + 5) + 8192 * len(manifest.shards)
    assert manifest.proof["end"]["max_ratio"] < 2
    lost = manifest.quantisation
    assert lost["sequences"] == 8
    assert set(lost["relative_rms"]) == set(manifest.states)
    assert all(0.01 < error < 0.04 for error in lost["relative_rms"].values())
    assert reporter.notes[-1].startswith("stored as fp8_e4m3: relative error boundary.1 2.")
    run_inspect(data.folder)
    assert reporter.notes[-1].removeprefix("stored as fp8_e4m3: ") in capsys.readouterr().out
