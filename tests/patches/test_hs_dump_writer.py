"""Rows into files: in place, in order, checked, and never over something committed."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib

import psutil
import pytest
import torch
from eagle3_hs_dump.batch import Batch, Segment
from eagle3_hs_dump.placement import read_placement
from eagle3_hs_dump.staging import Staging
from eagle3_hs_dump.writer import Writers
from tests.e2e.placing import Placed, place

HIDDEN = 16
SEQUENCES = {5: list(range(100, 130)), 3: [7], 8: list(range(40, 57))}


class Pipe:
    """Staging and writers as the plugin sets them up, with blocks of only a few rows."""

    def __init__(self, placed: Placed, writers: int = 2, block_rows: int = 8) -> None:
        self.placed = placed
        self.placement = read_placement(placed.work)
        row = HIDDEN * 2 * len(placed.states)
        self.staging = Staging(self.placement, torch.device("cpu"), 4 * block_rows * row, block_rows * row)
        self.writers = Writers(placed.work, self.placement, self.staging, writers)

    def send(self, parts: list[tuple[int, int, int]], states: list[torch.Tensor], ids: list[int] | None = None) -> None:
        """One forward pass of (sample, start, count) parts; `states` hold the rows of all parts."""
        segments, tokens, row = [], [], 0
        for sample, start, count in parts:
            segments.append(Segment(self.placement.index[sample], start, row, count))
            tokens += self.placed.sequences[sample][start : start + count]
            row += count
        batch = Batch(torch.tensor(ids or tokens), segments, row, False)
        for block, moved in self.staging.stage(batch, states):
            self.writers.submit(block, moved)

    def settle(self) -> None:
        deadline = time.monotonic() + 30
        while self.staging.in_use:
            assert time.monotonic() < deadline, "a block was never released"
            time.sleep(0.005)


@pytest.fixture
def pipe(tmp_path):
    return Pipe(place(tmp_path, SEQUENCES, [1, 4], HIDDEN, 2))


def rows(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, HIDDEN, generator=generator).bfloat16() for _ in range(3)]


def test_chunks_of_several_sequences_end_up_in_place(pipe):
    first, second = rows(21, 1), rows(27, 2)
    pipe.send([(5, 0, 16), (8, 0, 5)], first)
    pipe.send([(5, 16, 14), (3, 0, 1), (8, 5, 12)], second)
    pipe.settle()
    assert pipe.writers.error is None
    wanted = {
        5: [torch.cat([a[:16], b[:14]]) for a, b in zip(first, second, strict=True)],
        3: [b[14:15] for b in second],
        8: [torch.cat([a[16:], b[15:]]) for a, b in zip(first, second, strict=True)],
    }
    ledger = pipe.placed.ledger()
    for sample, states in wanted.items():
        stored = pipe.placed.read(sample)
        for name, state, crc in zip(pipe.placed.states, states, ledger[sample]["crc"], strict=True):
            assert torch.equal(stored[name], state)
            assert crc == zlib.crc32(state.view(torch.int16).numpy().tobytes())
        assert ledger[sample] == ledger[sample] | {"length": len(SEQUENCES[sample]), "bad": None}


def test_packed_states_are_split(pipe):
    """Newer DeepSeek hands out one tensor [T, K * H]: its parts are not contiguous."""
    packed = torch.randn(1, 2 * HIDDEN).bfloat16()
    final = torch.randn(1, HIDDEN).bfloat16()
    pipe.send([(3, 0, 1)], [*packed.split(HIDDEN, dim=-1), final])
    pipe.settle()
    assert torch.equal(pipe.placed.read(3)["boundary.4"], packed[:, HIDDEN:])


@pytest.mark.parametrize(("value", "name"), [(float("nan"), "nan"), (float("-inf"), "inf")])
def test_rows_that_are_not_finite_are_named(pipe, value, name):
    states = rows(17)
    states[1][9, 3] = value
    pipe.send([(8, 0, 17)], states)
    pipe.send([(3, 0, 1)], rows(1))
    pipe.settle()
    assert pipe.placed.ledger()[8]["bad"] == name
    assert pipe.placed.ledger()[3]["bad"] is None
    assert pipe.writers.figures["bad"] == 1


def test_a_gap_is_an_error(pipe):
    """What a radix cache does: the cached prefix is never forwarded."""
    pipe.send([(8, 4, 13)], rows(13))
    pipe.settle()
    assert "sequence 8" in pipe.writers.error
    assert "radix" in pipe.writers.error
    assert pipe.placed.ledger() == {}


def test_other_tokens_than_the_shard_s_are_an_error(pipe):
    pipe.send([(3, 0, 1)], rows(1), ids=[8])
    pipe.settle()
    assert "tokens" in pipe.writers.error
    assert pipe.placed.ledger() == {}


def test_a_missing_shard_is_an_error(pipe):
    (pipe.placed.work.parent / "shard-00001.safetensors.partial").unlink()
    pipe.send([(8, 0, 17)], rows(17))
    pipe.settle()
    assert "shard-00001" in pipe.writers.error


def test_an_aborted_sequence_starts_again(pipe):
    pipe.send([(8, 0, 5)], rows(5, 1))
    states = rows(17, 2)
    pipe.send([(8, 0, 17)], states)
    pipe.settle()
    assert pipe.writers.error is None
    assert torch.equal(pipe.placed.read(8)["final"], states[-1])
    assert pipe.placed.ledger()[8]["crc"][2] == zlib.crc32(states[2].view(torch.int16).numpy().tobytes())


def test_what_is_committed_is_not_written_again(pipe):
    states = rows(17, 1)
    pipe.send([(8, 0, 17)], states)
    pipe.send([(8, 0, 17)], rows(17, 2))
    pipe.settle()
    assert torch.equal(pipe.placed.read(8)["final"], states[-1])
    assert (pipe.writers.figures["sequences"], pipe.writers.figures["repeated"]) == (1, 1)


def test_after_an_error_nothing_waits_and_nothing_is_written(pipe):
    pipe.send([(3, 0, 1)], rows(1), ids=[8])
    pipe.settle()
    for _ in range(20):  # far more than the blocks hold
        pipe.send([(5, 0, 30)], rows(30))
    pipe.settle()
    assert pipe.placed.ledger() == {}


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_writer_is_an_error_and_nothing_waits_for_it(pipe, number):
    pipe.send([(3, 0, 1)], rows(1))
    pipe.settle()
    os.kill(pipe.writers.pids[number], signal.SIGKILL)
    for _ in range(20):  # more than the blocks hold
        pipe.send([(5, 0, 30)], rows(30))
    pipe.settle()
    deadline = time.monotonic() + 30
    while pipe.writers.error is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert "ended with code -9" in pipe.writers.error
    assert 3 in pipe.placed.ledger()


def test_the_last_states_are_held_while_there_is_room_for_two_batches(pipe, monkeypatch):
    """The copy off a GPU is simulated: there is none here."""
    staging = pipe.staging
    let_go = []
    monkeypatch.setattr(staging, "_let_go", lambda: let_go.append(len(staging._held)))
    monkeypatch.setattr("eagle3_hs_dump.staging.DEVICE_BYTES", 5 * 100)
    staging._held = [torch.empty(25) for _ in range(3)]  # 3 states of 100 bytes; a pass adds as many
    for captured in range(2):
        staging.before_capture(captured)
    assert let_go == []
    staging.before_capture(2)
    assert let_go == [3]


LEFT_ALONE = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from tests.patches.test_hs_dump_writer import Pipe, SEQUENCES, rows, HIDDEN
from tests.e2e.placing import place
pipe = Pipe(place(Path({folder!r}), SEQUENCES, [1, 4], HIDDEN, 2), writers=1)
pipe.send([(3, 0, 1)], rows(1)); pipe.settle()
for pid in pipe.writers.pids:
    os.kill(pid, signal.SIGSTOP)
pipe.send([(8, 0, 8)], rows(17)); pipe.send([(8, 8, 8)], rows(17)); pipe.send([(8, 16, 1)], rows(17))
while pipe.writers.queued < 3:
    pass
print(*pipe.writers.pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_left_the_model_is_written_though_the_server_is_killed(tmp_path):
    script = LEFT_ALONE.format(path=sys.path, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], check=False, stdout=subprocess.PIPE, timeout=120, text=True)
    placed = Placed(tmp_path / "work", ["boundary.1", "boundary.4", "final"], SEQUENCES)
    assert done.returncode == -signal.SIGKILL
    assert list(placed.ledger()) == [3]
    (pid,) = map(int, done.stdout.split())
    os.kill(pid, signal.SIGCONT)
    psutil.wait_procs([psutil.Process(pid)], timeout=60)
    assert list(placed.ledger()) == [3, 8]


FULL = """
import json, resource, sys, time
from pathlib import Path
sys.path[:0] = {path!r}
import torch
from tests.patches.test_hs_dump_writer import Pipe, SEQUENCES, rows, HIDDEN
from tests.e2e.placing import place
from eagle3_hs_dump.status import Status
placed = place(Path({folder!r}), SEQUENCES, [1, 4], HIDDEN, 2)
pipe = Pipe(placed)
status = Status(placed.work, lambda: {{"error": pipe.writers.error}})
pipe.send([(3, 0, 1)], rows(1)); pipe.settle()
shard = placed.work.parent / "shard-00001.safetensors.partial"
for pid in pipe.writers.pids:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (shard.stat().st_size // 2, resource.RLIM_INFINITY))
pipe.send([(8, 0, 17)], rows(17)); pipe.settle()
status.write()
"""


def test_a_write_that_fails_is_told_and_spares_what_is_committed(tmp_path):
    """A file-size limit stands in for the full disk: `pwrite` fails the same way, in the middle of a sequence."""
    script = FULL.format(path=sys.path, folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    (path,) = (tmp_path / "work").glob("status-*.json")
    assert "File too large" in json.loads(path.read_text())["error"]
    placed = Placed(tmp_path / "work", ["boundary.1", "boundary.4", "final"], SEQUENCES)
    assert list(placed.ledger()) == [3]
