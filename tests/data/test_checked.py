"""Finished shards that were damaged: what is lost is extracted again, nothing else; what is whole is not read twice."""

import os
from pathlib import Path

import pytest
from tests.data.small_datasets import SHAPE
from tests.data.test_extract_assembly import Growing, same_as_undisturbed, spoil

from eagle3.data import checked
from eagle3.data.layout import DATA_ALIGNMENT
from eagle3.data.manifest import Manifest
from eagle3.data.verify import verify


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def flip_row(path: Path) -> None:
    """In the second of the shard's sequences."""
    flip(path, DATA_ALIGNMENT + 8 * SHAPE.row_bytes)


def flip_header(path: Path) -> None:
    flip(path, 20)


def flip_checksum(path: Path) -> None:
    manifest = Manifest.load(path.parent)
    flip(path, manifest.layout(manifest.shards[2]).slots["checksums"].offset)


THIRD = "shard-00002.safetensors"
HARMS = {
    "deleted": (Path.unlink, [3, 4], "is missing or truncated: 2 of its 2 sequences are extracted again (109, 112)"),
    "truncated": (lambda path: os.truncate(path, 5000), [3, 4], "is missing or truncated: 2 of its 2 sequences"),
    "a flipped byte": (flip_row, [4], "has changed: 1 of its 2 sequences are extracted again (112)"),
    "its checksums": (flip_checksum, [3], "has changed: 1 of its 2 sequences are extracted again (109)"),
    "its masks": (spoil, [], "has changed: it is mended, no sequence was lost"),
    "its header": (flip_header, [], "has changed: it is mended, no sequence was lost"),
}


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("harm", HARMS)
def test_what_is_damaged_is_redone_and_nothing_else(tmp_path, harm, complete):
    how, lost, told = HARMS[harm]
    if harm == "its checksums" and not complete:  # the ledger has them too
        lost, told = HARMS["its masks"][1:]
    growing = Growing(tmp_path / "a")
    for i in range(5):
        growing.write(i)
    growing.take()
    assert len(growing.assembly.manifest.shards) == 3
    if complete:
        growing.finish()
        growing.work.mkdir()
    how(tmp_path / "a" / THIRD)
    growing.again()
    assert list(growing.assembly.missing()) == [*lost, *([] if complete else [5, 6, 7])]
    assert len(growing.assembly.redone) == 1
    assert growing.assembly.redone[0].startswith(f"{THIRD} {told}")
    growing.again()  # as after a kill right here: nothing more is lost
    assert list(growing.assembly.missing()) == [*lost, *([] if complete else [5, 6, 7])]
    growing.finish()
    assert same_as_undisturbed(tmp_path / "a", tmp_path / "b")
    growing.work.mkdir()
    growing.again()
    assert growing.assembly.redone == []


def test_only_what_was_touched_is_read_again(tmp_path, monkeypatch):
    growing = Growing(tmp_path)
    growing.finish()
    growing.work.mkdir()
    read: list[str] = []
    real = checked.damage

    def damage(shard):
        read.extend([] if shard.known else [shard.path.name])
        return real(shard)

    monkeypatch.setattr(checked, "damage", damage)
    growing.again()
    assert read == []
    growing.assembly.manifest.target["fingerprint"] = "f"
    growing.assembly.manifest.save(tmp_path)
    os.utime(tmp_path / THIRD)
    assert checked.untouched(tmp_path, "f") == f"{tmp_path}: 1 of 5 shards may have changed"
    growing.again()
    assert read == [THIRD]
    assert checked.untouched(tmp_path, "f") is None, "it was read, and is right"
    assert checked.untouched(tmp_path, "g") == f"{tmp_path / 'manifest.json'} is of another target"
    checked.withdraw(tmp_path)  # what `eagle3 verify` does when it finds a fault
    growing.again()
    assert len(read) == 6


def test_a_quarantined_sequence_of_a_damaged_shard_stays_so(tmp_path):
    growing = Growing(tmp_path)
    growing.write(3, bad="nan")
    for i in (0, 1, 2, 4):
        growing.write(i)
    growing.take()
    flip_row(tmp_path / THIRD)
    growing.again()
    assert list(growing.assembly.missing()) == [4, 5, 6, 7]
    assert growing.assembly.quarantined == {3: "nan"}
    growing.finish()
    assert not list(verify(tmp_path))
