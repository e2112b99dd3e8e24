"""Growing, interrupting and continuing a dataset, without a server: rows and ledger lines as its plugin writes them."""

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.small_datasets import SHAPE, prompts_of, states_of, write

from eagle3.data import lock
from eagle3.data.assembly import Assembly
from eagle3.data.ledger import LedgerTail
from eagle3.data.manifest import Manifest
from eagle3.data.placement import Placement, place
from eagle3.data.shards import HiddenStates
from eagle3.data.skeleton import PARTIAL, row_checksums
from eagle3.data.verify import verify
from eagle3.data.writer import blank_manifest
from eagle3.errors import DataError

LENGTHS = [5, 1, 9, 4, 7, 3, 8, 2]
TINY = 12 * SHAPE.token_bytes / (1 << 30)


class Growing:
    """A dataset folder, an assembly, and the writing that the server does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.placement: Placement = place(prompts_of(LENGTHS), SHAPE, TINY, 100)
        self.again()

    def again(self) -> None:
        """What a new run does first."""
        known = (self.folder / "manifest.json").exists()
        manifest = Manifest.load(self.folder) if known else blank_manifest(SHAPE, self.placement, {})
        self.assembly = Assembly(self.folder, self.placement, manifest)
        self.assembly.resume(LedgerTail(self.work).poll())
        self.tail = LedgerTail(self.work)
        list(self.tail.poll())
        manifest.save(self.folder)

    def write(self, i: int, bad: str | None = None, ledger: str = "ledger-1-1.jsonl") -> None:
        self.assembly.make_room(i)
        plan = self.placement.shards[int(self.placement.shard[i])]
        row, length = int(self.placement.row[i]), LENGTHS[i]
        with (self.folder / (plan.file + PARTIAL)).open("r+b", buffering=0) as file:
            for name, tensor in states_of(length, i).items():
                file.seek(plan.layout.rows(name, row, length)[0])
                file.write(tensor.view(torch.uint8).numpy().data)
            crc = row_checksums(file.fileno(), plan.layout, row, length)
        line = {"id": int(self.placement.sample_ids[i]), "length": length, "crc": crc, "bad": bad}
        with (self.work / ledger).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def take(self) -> None:
        for entry in self.tail.poll():
            self.assembly.accept(entry)
        self.assembly.collect(wait=True)

    def finish(self) -> None:
        for i in list(self.assembly.missing()):
            self.write(i)
        self.take()
        self.assembly.close()
        assert self.assembly.done_sequences == len(LENGTHS)
        self.assembly.manifest.complete = True
        self.assembly.manifest.save(self.folder)
        shutil.rmtree(self.work)


def same_as_undisturbed(folder: Path, other: Path) -> bool:
    manifest = write(other, LENGTHS, TINY)
    mine = Manifest.load(folder)
    assert not list(verify(folder))
    same_files = all((folder / s.file).read_bytes() == (other / s.file).read_bytes() for s in manifest.shards)
    return same_files and mine.shards == manifest.shards


def test_a_dataset_grows_in_any_order(tmp_path):
    growing = Growing(tmp_path / "a")
    for i in (7, 2, 0):
        growing.write(i)
    growing.take()
    assert growing.assembly.done_sequences == 3
    assert list(growing.assembly.missing()) == [1, 3, 4, 5, 6]
    growing.finish()
    assert same_as_undisturbed(tmp_path / "a", tmp_path / "b")


def test_a_full_shard_is_listed_at_once_and_not_before(tmp_path):
    growing = Growing(tmp_path)
    growing.write(0)
    growing.take()
    assert Manifest.load(tmp_path).shards == []
    growing.write(1)
    growing.take()
    assert [s.file for s in Manifest.load(tmp_path).shards] == ["shard-00000.safetensors"]
    assert len(HiddenStates(tmp_path, allow_incomplete=True)) == 2


@pytest.mark.parametrize("committed", [[], [0], [0, 1], [0, 2, 3, 5], [7], list(range(8))])
def test_a_new_run_continues(tmp_path, committed):
    growing = Growing(tmp_path / "a")
    for i in committed:
        growing.write(i)
    # Killed here: nothing was taken from the ledger.
    growing.again()
    assert list(growing.assembly.missing()) == [i for i in range(8) if i not in committed]
    growing.finish()
    assert same_as_undisturbed(tmp_path / "a", tmp_path / "b")


def harm_row(growing: Growing, i: int) -> None:
    plan = growing.placement.shards[int(growing.placement.shard[i])]
    with (growing.folder / (plan.file + PARTIAL)).open("r+b") as file:
        file.seek(plan.layout.rows("boundary.3", int(growing.placement.row[i]), 1)[0])
        file.write(b"\xff")


def test_a_committed_sequence_whose_rows_were_lost_is_redone(tmp_path):
    """As after a power cut: the ledger's line is there, the rows are not."""
    growing = Growing(tmp_path / "a")
    growing.write(2)
    growing.write(3)
    harm_row(growing, 2)
    growing.again()
    assert growing.assembly.done_sequences == 1
    growing.finish()
    assert same_as_undisturbed(tmp_path / "a", tmp_path / "b")


def test_a_torn_ledger_line_does_not_count(tmp_path):
    growing = Growing(tmp_path / "a")
    growing.write(0)
    growing.write(3)
    ledger = growing.work / "ledger-1-1.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-5])
    growing.again()
    assert list(growing.assembly.missing()) == [1, 2, 3, 4, 5, 6, 7]
    growing.write(3, ledger="ledger-2-2.jsonl")
    growing.take()
    assert growing.assembly.done_sequences == 2


def test_a_ledger_is_followed_line_by_line(tmp_path):
    tail = LedgerTail(tmp_path)
    path = tmp_path / "ledger-1-1.jsonl"
    path.write_text('{"id": 1, "length": 2, "crc": [3], "bad": null}\n{"id": 2, "le')
    assert [entry.sample_id for entry in tail.poll()] == [1]
    assert not list(tail.poll())
    with path.open("a") as file:
        file.write('ngth": 2, "crc": [3], "bad": "nan"}\nrubbish\n')
    assert [(entry.sample_id, entry.bad) for entry in tail.poll()] == [(2, "nan")]


def spoil(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\x07")


def test_a_shard_renamed_but_not_listed_is_taken_up(tmp_path):
    growing = Growing(tmp_path / "a")
    for i in range(3):
        growing.write(i)
    before = Manifest.load(tmp_path / "a")
    growing.take()
    before.save(tmp_path / "a")
    growing.again()
    assert growing.assembly.done_sequences == 3
    growing.finish()
    assert same_as_undisturbed(tmp_path / "a", tmp_path / "b")


def test_a_skeleton_of_another_placement_is_made_anew(tmp_path):
    growing = Growing(tmp_path / "a")
    growing.write(2)
    spoil(tmp_path / "a" / ("shard-00001.safetensors" + PARTIAL))
    growing.again()
    assert growing.assembly.done_sequences == 0
    growing.finish()
    assert same_as_undisturbed(tmp_path / "a", tmp_path / "b")


def test_bad_rows_are_quarantined_and_tried_again_by_a_new_run(tmp_path):
    growing = Growing(tmp_path)
    growing.write(0)
    growing.write(1, bad="nan")
    growing.write(3, bad="inf")
    growing.take()
    assert Manifest.load(tmp_path).quarantined == {"103": "nan", "109": "inf"}
    assert HiddenStates(tmp_path, allow_incomplete=True).sample_ids.tolist() == [100]
    growing.again()
    assert 3 in list(growing.assembly.missing()), "its shard was not full yet"
    assert 1 not in list(growing.assembly.missing())
    growing.finish()
    assert not list(verify(tmp_path))
    data = HiddenStates(tmp_path)
    assert data.sample_ids.tolist() == [100 + 3 * i for i in range(8) if i != 1]


def test_what_is_committed_twice_counts_once(tmp_path):
    growing = Growing(tmp_path)
    growing.write(0)
    growing.write(0)
    growing.take()
    assert growing.assembly.done_sequences == 1


def test_a_commit_of_another_length_is_refused(tmp_path):
    growing = Growing(tmp_path)
    growing.write(0)
    path = growing.work / "ledger-1-1.jsonl"
    path.write_text(path.read_text().replace('"length": 5', '"length": 4'))
    with pytest.raises(DataError, match="Sequence 100 has 5 tokens, and the server's plugin wrote 4"):
        growing.take()


def test_a_skeleton_that_the_disk_refuses_is_named(tmp_path):
    growing = Growing(tmp_path)
    (tmp_path / "shard-00000.safetensors.partial.new").mkdir()
    with pytest.raises(DataError, match=r"shard-00000\.safetensors\.partial could not be written"):
        growing.assembly.make_room(0)


def test_checksums_are_those_of_the_ledger(tmp_path):
    growing = Growing(tmp_path)
    growing.finish()
    manifest = Manifest.load(tmp_path)
    shard = manifest.shards[0]
    slot = manifest.layout(shard).slots["checksums"]
    stored = np.fromfile(tmp_path / shard.file, np.int64, slot.nbytes // 8, offset=slot.offset).reshape(slot.shape)
    assert stored.tolist() == growing.assembly.checksums[:2].tolist()


def test_a_second_extraction_is_refused_and_a_dead_owner_is_not_waited_for(tmp_path):
    work = tmp_path / "work"
    with (
        lock.hold(work),
        pytest.raises(DataError, match=rf"is being made by process {os.getpid()} on .* already"),
        lock.hold(work),
    ):
        pass
    context = multiprocessing.get_context("fork")
    child = context.Process(target=die_holding, args=(work,))
    child.start()
    child.join()
    assert child.exitcode == 9
    with lock.hold(work):
        pass


def die_holding(work: Path) -> None:
    with lock.hold(work):
        os._exit(9)


def test_the_folder_of_a_lock_may_go_while_it_is_held(tmp_path):
    work = tmp_path / "work"
    with lock.hold(work):
        shutil.rmtree(work)
        with lock.hold(work):
            pass
