"""Extraction through a real SGLang server on the CPU: right, whatever interrupts it; and a wrong dump is found out."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.e2e.extraction import BOUNDARIES, Quiet, cpu_config, expected_states, lengths, write_prompts
from tests.e2e.models import build, tiny_llama
from transformers import PreTrainedModel

from eagle3.data.assembly import Assembly
from eagle3.data.extract import require_boundaries, run_extraction
from eagle3.data.layout import StateShape, state_names
from eagle3.data.ledger import LedgerTail
from eagle3.data.manifest import Manifest
from eagle3.data.meter import Meter
from eagle3.data.placement import Prompts, place, write_placement
from eagle3.data.proving import BASE_ID, Proving
from eagle3.data.session import Session
from eagle3.data.shards import HiddenStates
from eagle3.data.verify import verify
from eagle3.data.writer import blank_manifest
from eagle3.errors import DataError, ProofError, ServerError
from eagle3.server import flags
from eagle3.server.client import Client
from eagle3.server.flags import server_command
from eagle3.server.launch import Server
from eagle3.server.patches import patch_folder
from eagle3.target import TargetInfo, load_lm_head, read_info

pytestmark = pytest.mark.e2e
COUNT = 60


class Setting:
    """A tiny target, prompts, and what is extracted from them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model: PreTrainedModel = build(tiny_llama(), root / "model")
        self.target: TargetInfo = read_info(root / "model")
        self.prompts = write_prompts(root / "prompts", lengths(COUNT))
        self.config = cpu_config(root / "model")

    def extract(self, out: str, reporter: Quiet | None = None) -> Manifest:
        return run_extraction(
            self.config,
            self.target,
            self.root / "prompts",
            self.root / out,
            BOUNDARIES,
            reporter or Quiet(),
            self.root / "logs" / out,
        )


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(tmp_path_factory.mktemp("extract"))


@pytest.fixture(scope="module")
def whole(setting: Setting) -> tuple[HiddenStates, Quiet]:
    """The undisturbed extraction."""
    reporter = Quiet()
    setting.extract("whole", reporter)
    return HiddenStates(setting.root / "whole"), reporter


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def test_states_are_those_of_transformers(setting: Setting, whole: tuple[HiddenStates, Quiet]) -> None:
    data, _ = whole
    assert data.lengths.tolist() == [len(ids) for ids in setting.prompts]
    assert data.sample_ids.tolist() == [10 + 2 * i for i in range(COUNT)]
    for i, ids in enumerate(setting.prompts):
        expected = expected_states(setting.model, ids)
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


class At(Quiet):
    """Does something once when so many sequences are committed."""

    def __init__(self, count: int, action: Callable[[], Any]) -> None:
        super().__init__()
        self.count = count
        self.action: Callable[[], Any] | None = action

    def progress(self, done: float, total: float, **fields: Any) -> None:
        super().progress(done, total, **fields)
        if done >= self.count and self.action is not None:
            action, self.action = self.action, None
            action()


def kill_scheduler() -> None:
    """kill -9 of the process that computes and writes."""
    for process in psutil.Process().children(recursive=True):
        if "scheduler" in " ".join(process.cmdline()):
            process.kill()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_nothing_is_lost_or_done_twice(setting: Setting, whole: tuple[HiddenStates, Quiet]) -> None:
    """kill -9 of the server, then Ctrl-C, then the same call: the dataset is the undisturbed one."""
    with pytest.raises(ServerError, match=r"(?s)the server .* sequences are committed in .*the same command continues"):
        setting.extract("disturbed", At(8, kill_scheduler))
    assert not psutil.Process().children(recursive=True)
    assert not Manifest.load(setting.root / "disturbed").complete
    with pytest.raises(DataError, match="is not complete"):
        HiddenStates(setting.root / "disturbed")

    stopped = At(30, interrupt)
    with pytest.raises(KeyboardInterrupt):
        setting.extract("disturbed", stopped)
    assert "sequences are committed" in stopped.notes[-1]
    assert stopped.bars[0]["done"] >= 8
    assert not psutil.Process().children(recursive=True)

    last = Quiet()
    setting.extract("disturbed", last)
    assert last.bars[0]["done"] >= 30
    data, undisturbed = HiddenStates(setting.root / "disturbed"), whole[0]
    assert not list(verify(data.folder))
    assert data.sample_ids.tolist() == undisturbed.sample_ids.tolist()
    assert data.lengths.tolist() == undisturbed.lengths.tolist()
    assert data.manifest.placement == undisturbed.manifest.placement
    for i in range(COUNT):
        one = data.read(i, ["input_ids", "loss_mask", *data.manifest.states])
        two = undisturbed.read(i, list(one))
        assert torch.equal(one["input_ids"], two["input_ids"])
        assert torch.equal(one["loss_mask"], two["loss_mask"])
        for state in data.manifest.states:  # not bit by bit: what is computed together depends on the clock
            assert relative_error(one[state], two[state]) < 0.02, (i, state)


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
