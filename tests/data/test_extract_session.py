"""What a session does about sequences that can't be had, and who may extract into a folder; without a server."""

import asyncio
import dataclasses
import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_model
from tests.data.small_datasets import SHAPE, prompts_of, write
from tests.data.test_extract_assembly import LENGTHS, Growing

from eagle3.config.schema import Config, DatasetConfig, ServerConfig, TargetConfig
from eagle3.data import attempts, session
from eagle3.data.extract import run_extraction
from eagle3.data.ledger import LedgerTail
from eagle3.data.limits import longest_prompt
from eagle3.data.meter import Meter
from eagle3.data.session import HANDFUL, Session
from eagle3.data.verify import verify
from eagle3.errors import ConfigError, DataError, ProofError, ServerError
from eagle3.metrics import JsonlReporter, Tail
from eagle3.server.flags import DUMP_FOLDER
from eagle3.target import TargetInfo


def a_session(folder: Path) -> tuple[Session, Growing]:
    growing = Growing(folder)
    meter = Meter(JsonlReporter(folder / "metrics.jsonl"))
    nothing: Any = None
    return Session(nothing, nothing, growing.assembly, nothing, LedgerTail(folder), "ab", meter, 60.0), growing


def test_a_handful_of_bad_sequences_is_put_up_with(tmp_path):
    one, growing = a_session(tmp_path)
    for i in range(HANDFUL):
        one._give_up(i, "nan")
    expected = r"6 of 8 sequences can't be used \(nan; rejected\): more than 5 and more than 1%"
    with pytest.raises(DataError, match=expected):
        one._give_up(HANDFUL, "rejected")
    assert len(growing.assembly.quarantined) == 6


def test_one_in_a_hundred_is_put_up_with_in_a_large_dataset(tmp_path, monkeypatch):
    one, growing = a_session(tmp_path)
    monkeypatch.setattr(session, "SHARE", 0.8)
    for i in range(6):
        one._give_up(i, "nan")
    assert growing.assembly.done_sequences == 6


def test_what_was_answered_but_not_dumped_is_sent_once_more(tmp_path, monkeypatch):
    one, growing = a_session(tmp_path)
    monkeypatch.setattr(session, "UNANSWERED_S", 0.0)
    before = time.monotonic() - 1
    answered = {2: before, 5: before, 6: before}
    growing.write(6)
    growing.take()
    one.meter.status = {"queue_depth": 1}
    assert one._lost(answered) == [], "the plugin still writes"
    one.meter.status = {"queue_depth": 0, "buffers_in_use": 0}
    assert one._lost(answered) == [2, 5]
    assert answered == {}
    assert one._lost({5: before}) == []
    assert growing.assembly.quarantined == {5: "answered by the server, but not dumped"}


def test_what_is_sent_again_goes_to_the_rank_that_had_it(tmp_path, monkeypatch):
    """Its writer knows what is committed. Another rank's would write over it."""
    monkeypatch.setattr(session, "GRACE_S", 0.0)
    sent: list[tuple[list[str], int]] = []

    class Client:
        async def prefill(self, prompts: list[list[int]], rids: list[str], route: dict[str, int]) -> None:
            sent.append((rids, route["routed_dp_rank"]))
            if len(sent) == 2:
                raise ServerError("the connection broke")

    class Server:
        ready = (None, None)
        command = SimpleNamespace(sglang_version="0.5.23")

        def check(self) -> None:
            pass

    async def send() -> None:
        for group in ([0, 1], [2], [1], [0]):
            await one._send(group)

    one, _ = a_session(tmp_path)
    one.server, one.client = Server(), Client()  # type: ignore[assignment]
    asyncio.run(send())
    ranks = {}
    for rids, rank in sent:
        for rid in rids:
            assert ranks.setdefault(rid, rank) == rank
    assert len(sent) == 5
    assert sorted(ranks.values()) == [0, 0, 1]


def test_figures_are_reported(tmp_path):
    one, growing = a_session(tmp_path)
    growing.write(0)
    growing.take()
    one.meter.report(growing.assembly, {"queue_depth": 3, "stalls": 2})
    rows = list(Tail(tmp_path / "metrics.jsonl").rows())
    bar, row = rows[0]["progress"], rows[1]["values"]
    assert (bar["done"], bar["total"], bar["unit"], bar["queue"], bar["stalls"]) == (1, 8, "sequences", 3, 2)
    assert row["extract/tokens"] == LENGTHS[0]
    assert row["extract/gb"] == pytest.approx(LENGTHS[0] * SHAPE.token_bytes / 1e9)


def the_target(folder: Path) -> TargetInfo:
    """Enough of one for what happens before a server starts."""
    folder.mkdir(parents=True)
    save_model({"lm_head.weight": torch.zeros(100, SHAPE.hidden_size)}, folder / "model.safetensors")
    values = dict.fromkeys((f.name for f in dataclasses.fields(TargetInfo)), 1)
    words = {"name": "t", "source": "local", "fingerprint": "f", "text_prefix": "", "path": folder}
    sizes = {"hidden_size": SHAPE.hidden_size, "num_layers": 4, "vocab_size": 100, "context_length": 16}
    keys = {"embedding_key": "lm_head.weight", "lm_head_key": "lm_head.weight"}
    return TargetInfo(**{**values, **words, **sizes, **keys})  # pyright: ignore[reportArgumentType]


def the_config(**flags: Any) -> Config:
    config = Config(name="t", target=TargetConfig(name="t", path="t"), dataset=DatasetConfig(name="d", path="d"))
    config.server = ServerConfig(device="cpu")
    config.server.flags.extraction = flags
    return config


def test_sglang_takes_a_few_tokens_less_than_its_context(tmp_path):
    target = the_target(tmp_path / "t")
    assert longest_prompt(the_config(), target) == 9
    assert longest_prompt(the_config(context_length=2048), target) == 2041


def extract(tmp_path: Path, config: Config, lengths: list[int]) -> None:
    prompts = prompts_of(lengths)
    (tmp_path / "p").mkdir(exist_ok=True)
    save_file({**vars(prompts), "held_out": np.zeros(len(lengths), np.uint8)}, tmp_path / "p" / "prompts.safetensors")
    reporter = JsonlReporter(tmp_path / "metrics.jsonl")
    run_extraction(config, the_target(tmp_path / "t"), tmp_path / "p", tmp_path / "out", [1, 3], reporter, tmp_path)


def test_a_wrong_flag_ends_before_a_server_starts(tmp_path):
    with pytest.raises(ConfigError, match=r"server\.flags\.extraction\.no_such_flag: SGLang .* has no such flag$"):
        extract(tmp_path, the_config(no_such_flag=1), [5, 6])


def test_prompts_that_can_not_be_extracted_are_counted(tmp_path):
    with pytest.raises(ConfigError, match="no_such_flag"):
        extract(tmp_path, the_config(no_such_flag=1), [5, 0, 10, 9, 12])
    notes = [row["note"] for row in Tail(tmp_path / "metrics.jsonl").rows() if "note" in row]
    assert notes == ["skipped: 1 empty, 2 too_long"]


def test_prompts_that_nothing_can_be_proven_of_are_refused(tmp_path):
    with pytest.raises(ProofError, match="No prompt has two tokens"):
        extract(tmp_path, the_config(), [1, 1])


def of_target(folder: Path, fingerprint: str) -> None:
    """A complete dataset of the target with this fingerprint."""
    manifest = write(folder, [5, 6])
    manifest.target["fingerprint"] = fingerprint
    manifest.save(folder)


def test_a_dataset_of_another_target_is_moved_aside(tmp_path):
    """Its shards can't be told from this target's."""
    of_target(tmp_path / "out", "another")
    (tmp_path / "out" / "inputs.json").write_text('{"target": "f"}')
    assert "manifest.json: it is of another target, another, than" in str(next(verify(tmp_path / "out")))
    (tmp_path / "out" / "work").mkdir()
    (tmp_path / "out" / "work" / "ledger-1-1.jsonl").write_text("what its server had committed")
    with pytest.raises(ConfigError, match="no_such_flag"):
        extract(tmp_path, the_config(no_such_flag=1), [5, 6])
    (aside,) = tmp_path.glob("out-of-another-target-*")
    assert {path.name for path in aside.iterdir()} == {"manifest.json", "shard-00000.safetensors", "ledger-1-1.jsonl"}
    assert not list((tmp_path / "out").glob("shard-*.safetensors"))
    notes = [row["note"] for row in Tail(tmp_path / "metrics.jsonl").rows() if "note" in row]
    assert f"it is in {aside} now" in notes[0]


def test_a_folder_of_another_extraction_is_left_alone(tmp_path):
    of_target(tmp_path / "out", "f")
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    with pytest.raises(DataError, match=r"out holds another extraction: its vocab_size is 0, and this one's is 100"):
        extract(tmp_path, the_config(), [5, 6])
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before


def test_a_disk_that_fills_before_anything_is_committed(tmp_path, monkeypatch):
    """As in the proof: the message says how to go on, too."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "out" / "work" / "placement.json"))

    monkeypatch.setattr(attempts, "write_placement", full)
    says = r"(?s)disk is full: .*placement\.json .*0 of 2 sequences are committed in .*out; the same command continues"
    with pytest.raises(DataError, match=says):
        extract(tmp_path, the_config(), [5, 6])


def test_progress_says_that_a_proof_is_taken(tmp_path):
    growing = Growing(tmp_path)
    reporter = JsonlReporter(tmp_path / "metrics.jsonl")
    meter = Meter(reporter)
    meter.report(growing.assembly, {}, (3, 8))
    meter.report(growing.assembly, {})
    bars = [row["progress"] for row in Tail(tmp_path / "metrics.jsonl").rows() if "progress" in row]
    assert [(bar["done"], bar["total"], bar["unit"]) for bar in bars] == [
        (3, 8, "proof sequences"),
        (0, len(LENGTHS), "sequences"),
    ]


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "out").write_text("a file in the way")
    with pytest.raises(DataError, match=r"out could not be written"):
        extract(tmp_path, the_config(), [5, 6])


OUTLIVES = """
import sys, time
from pathlib import Path
told, until = Path(sys.argv[1]), time.monotonic() + 60
while time.monotonic() < until and not (told.exists() and "waiting for" in told.read_text()):
    time.sleep(0.02)
"""
"""Ends once somebody says that it is waited for."""


def test_whatever_still_writes_is_waited_for(tmp_path):
    """A writer of the server whose client was killed may outlive the server itself."""
    work, told = tmp_path / "out" / "work", tmp_path / "metrics.jsonl"
    old = subprocess.Popen([sys.executable, "-c", OUTLIVES, str(told)], env={**os.environ, DUMP_FOLDER: str(work)})
    with pytest.raises(ConfigError, match="no_such_flag"):
        extract(tmp_path, the_config(no_such_flag=1), [5, 6])
    assert old.poll() == 0
    notes = [row["note"] for row in Tail(told).rows() if "note" in row]
    assert notes == [f"waiting for the server of an earlier run to end (process {old.pid})"]
