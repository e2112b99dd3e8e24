"""Extraction through a real SGLang server on the CPU: right, whoever knocks; and a wrong dump is found out."""

import asyncio
import os
import shutil
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

from eagle3.data.assembly import Assembly
from eagle3.data.attempts import require_boundaries
from eagle3.data.extract import run_extraction
from eagle3.data.layout import StateShape, state_names
from eagle3.data.ledger import LedgerTail
from eagle3.data.meter import Meter
from eagle3.data.placement import Prompts, place, write_placement
from eagle3.data.proving import BASE_ID, Proving
from eagle3.data.session import Session
from eagle3.data.shards import HiddenStates
from eagle3.data.verify import verify
from eagle3.data.writer import blank_manifest
from eagle3.errors import DataError, ProofError
from eagle3.server import flags
from eagle3.server.client import Client
from eagle3.server.flags import server_command
from eagle3.server.launch import Server
from eagle3.server.patches import patch_folder
from eagle3.target import load_lm_head

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
    return write_prompts(root / "prompts", lengths(COUNT))


@pytest.fixture(scope="module")
def setting(root: Path, model: PreTrainedModel, prompts: list[torch.Tensor]) -> Setting:
    return Setting(root)


@pytest.fixture(scope="module")
def whole(setting: Setting) -> tuple[HiddenStates, Quiet]:
    """Extracted while others knock: a client of the same server, and a second extraction into the folder."""
    reporter = At(1, lambda: intrude(setting))
    setting.extract("whole", reporter)
    assert reporter.action is None, "nobody intruded"
    return HiddenStates(setting.root / "whole"), reporter


def intrude(setting: Setting) -> None:
    with pytest.raises(DataError, match=rf"whole is being made by process {os.getpid()} on .* already"):
        setting.extract("whole")
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
    """And nobody else's: what another client asked for is nowhere."""
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
    assert manifest.target["fingerprint"] == setting.target.fingerprint
    assert manifest.proof["start"]["sequences"] == 8
    assert manifest.proof["end"]["max_ratio"] < 2
    assert {"unit", "tokens_per_s", "gb", "queue", "stalls", "free_gib"} <= set(reporter.bars[-1])
    assert reporter.rows[-1]["extract/sequences"] == COUNT
    assert not psutil.Process().children(recursive=True)
    notes = len(reporter.notes)
    assert setting.extract("whole", reporter) == manifest, "nothing is left to do"
    assert len(reporter.notes) == notes


def test_another_extraction_in_the_folder_is_refused(setting: Setting, whole: tuple[HiddenStates, Quiet]) -> None:
    write_prompts(setting.root / "others", lengths(COUNT), seed=1)
    folder = whole[0].folder
    with pytest.raises(DataError, match="holds another extraction: its prompts_fingerprint"):
        run_extraction(
            setting.config, setting.target, setting.root / "others", folder, BOUNDARIES, Quiet(), setting.root / "logs"
        )
    assert HiddenStates(folder).manifest.complete


SABOTAGE = """

_KEPT = {}
_start, _take, _set = start, Dump.take, set_boundaries


def set_boundaries(model, boundaries):
    return _set(model, tuple(b + 1 for b in boundaries))


def start(runner, work):
    _start(runner, work)
    runner.model.model.norm.register_forward_pre_hook(lambda _, args: _KEPT.update(before=args[0] + args[1]))


def _broken(self, final, aux):
    how = Path(os.environ[FOLDER]) / "how"
    how = how.read_text() if how.exists() else ""
    together = self.pending is not None and len(self.pending.segments) > 1
    if how == "before the norm":
        final = _KEPT["before"]
    if how == "rows of another request" and together:
        final = final.roll(-self.pending.segments[0].count, 0)
    if how == "a boundary of another request" and together:
        aux = [aux[0], aux[1].roll(-self.pending.segments[0].count, 0), *aux[2:]]
    _take(self, final, aux)


Dump.take = _broken
"""


@pytest.fixture
def broken_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the plugin that captures the next boundaries, and does worse when told to."""
    copy = tmp_path / "hs_dump"
    shutil.copytree(patch_folder("hs_dump"), copy)
    with (copy / "eagle3_hs_dump" / "plugin.py").open("a") as file:
        file.write(SABOTAGE)
    monkeypatch.setattr(flags, "patch_folder", lambda name: copy if name == "hs_dump" else patch_folder(name))


@pytest.mark.usefixtures("broken_plugin")
def test_a_wrong_dump_is_found_out(setting: Setting, tmp_path: Path) -> None:
    """One server, one proof for each way of being wrong."""
    out, work = tmp_path / "out", tmp_path / "out" / "work"
    work.mkdir(parents=True)
    shape = StateShape(tuple(state_names(BOUNDARIES)), setting.target.hidden_size)
    dataset = place(Prompts.load(setting.root / "prompts"), shape, 1.0, setting.target.context_length)
    head = load_lm_head(setting.target)
    ways = ("", "before the norm", "rows of another request", "a boundary of another request", "")
    proofs = [
        Proving(out, dataset, head, way, f"work/proof-{n}.safetensors", BASE_ID + 100 * n) for n, way in enumerate(ways)
    ]
    write_placement(work, [dataset, *(proof.placement for proof in proofs)], "ab")
    assembly = Assembly(out, dataset, blank_manifest(shape, dataset, {}))
    assembly.make_room(0)
    tail = LedgerTail(work)
    messages: list[str] = []

    async def prove(server: Server) -> None:
        async with Client(server.url) as client:
            for way, proof in zip(ways, proofs, strict=True):
                (work / "how").write_text(way)
                proof.create()
                session = Session(server, client, assembly, proof, tail, "ab", Meter(Quiet()), 300.0)
                try:
                    if proof is proofs[-1]:  # the dataset's own rows are all zeros
                        await proof.end(session.dump_for_proof, set())
                    else:
                        await proof.start(session.dump_for_proof)
                    messages.append("passed")
                except ProofError as error:
                    messages.append(str(error))

    command = server_command(setting.config, "extraction", setting.target.path, dump=work)
    with Server.start(command, log=setting.root / "logs" / "broken.log", timeout_s=900.0, work=work) as server:
        with pytest.raises(ProofError, match=r"captures boundaries \[2, 4, 5\], and \[1, 3, 4\] were asked for"):
            require_boundaries(server, BOUNDARIES)
        asyncio.run(prove(server))
    assert messages[0] == "passed"
    assert "differs from the server's own log-probabilities" in messages[1]
    assert "differs from the server's own log-probabilities" in messages[2]
    assert "boundary.3: " in messages[3]
    assert "of the rows change with what else the server computes" in messages[3]
    assert "boundary.1: 100% of the rows change" in messages[4]
    assert assembly.done_sequences == 0, "no proof left anything in the dataset"
