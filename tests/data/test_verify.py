import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.small_datasets import SHAPE, write

from eagle3.data.layout import DATA_ALIGNMENT
from eagle3.data.manifest import Manifest
from eagle3.data.verify import verify

LENGTHS = [5, 1, 9, 4, 7]
TINY = 12 * SHAPE.token_bytes / (1 << 30)


def faults(folder) -> list[str]:
    return [str(fault) for fault in verify(folder)]


def patch(folder, name: str, offset: int, data: bytes) -> None:
    with (folder / name).open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_good_dataset_has_no_fault_and_is_read_whole(tmp_path):
    manifest = write(tmp_path, LENGTHS, TINY)
    seen: list[tuple[int, int]] = []
    assert not list(verify(tmp_path, lambda done, total: seen.append((done, total))))
    assert seen[-1] == (manifest.bytes, manifest.bytes)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_flipped_byte_is_found_in_its_shard(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("d")
    manifest = write(folder, LENGTHS, TINY)
    shard = data.draw(st.sampled_from(manifest.shards))
    at = data.draw(st.integers(0, shard.bytes - 1))
    with (folder / shard.file).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
    patch(folder, shard.file, at, bytes([byte ^ 0x10]))
    first = next(verify(folder))
    assert first.file == shard.file


def test_the_first_fault_names_file_sequence_and_state(tmp_path):
    manifest = write(tmp_path, LENGTHS, TINY)
    layout = manifest.layout(manifest.shards[2])
    patch(tmp_path, "shard-00002.safetensors", layout.rows("boundary.3", 4, 1)[0], b"\0\0")
    fault = next(verify(tmp_path))
    assert (fault.file, fault.sequence, fault.state) == ("shard-00002.safetensors", 112, "boundary.3")
    assert str(fault).startswith("shard-00002.safetensors, sequence 112, boundary.3: 7 rows don't have their checksum")


def test_rows_that_are_not_finite_are_found_though_their_checksum_is_right(tmp_path):
    from eagle3.data.skeleton import index_sha256, row_checksums

    manifest = write(tmp_path, LENGTHS, TINY)
    shard = manifest.shards[0]
    layout = manifest.layout(shard)
    patch(tmp_path, shard.file, layout.rows("final", 2, 1)[0], struct.pack("<H", 0x7FC0))
    with (tmp_path / shard.file).open("r+b") as file:
        sums = row_checksums(file.fileno(), layout, 0, 5)
        file.seek(layout.slots["checksums"].offset)
        file.write(struct.pack("<3q", *sums))
        file.flush()
        sha256 = index_sha256(file.fileno(), layout)
    edit(tmp_path, shards=[{**raw(tmp_path)["shards"][0], "sha256": sha256}, *raw(tmp_path)["shards"][1:]])
    assert faults(tmp_path) == [f"{shard.file}, sequence 100, final: has a value that is not finite (NaN or infinity)"]


def raw(folder) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def edit(folder, **values) -> None:
    (folder / "manifest.json").write_text(json.dumps({**raw(folder), **values}))


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda f: (f / "shard-00001.safetensors").unlink(), "is in the manifest, but is not there"),
        (lambda f: patch(f, "shard-00001.safetensors", 1 << 20, b"x"), "where the manifest says"),
        (lambda f: patch(f, "shard-00001.safetensors", DATA_ALIGNMENT - 1, b"x"), "another header"),
        (lambda f: (f / "manifest.json").unlink(), "has no manifest.json"),
        (lambda f: edit(f, complete=False), "it is not complete: finished shards hold 5 of 5"),
        (lambda f: edit(f, boundaries=[1, 4]), "are not boundaries"),
        (lambda f: edit(f, final_norm="pre"), "final_norm"),
        (lambda f: edit(f, sequences=6), "sequences is 6, and the shards' sum is 5"),
        (lambda f: edit(f, shards=raw(f)["shards"][:2], sequences=3, tokens=15), "and the shards hold 3"),
        (lambda f: edit(f, shards=raw(f)["shards"][:2], sequences=3, tokens=15), "is not in the manifest; remove it"),
        (lambda f: edit(f, placement={**raw(f)["placement"], "sha256": "0"}), "order that were planned"),
        (lambda f: edit(f, quarantined={"103": "nan"}), "sequence 103: is quarantined in the manifest or in the shard"),
        (lambda f: edit(f, quarantined={"7": "nan"}), "sequence 7: is quarantined, but in no shard"),
        (lambda f: (f / "shard-00009.safetensors.partial").write_bytes(b""), "is not in the manifest; remove it"),
    ],
)
def test_each_fault_is_named(tmp_path, harm, expected):
    write(tmp_path, LENGTHS, TINY)
    harm(tmp_path)
    assert expected in "\n".join(faults(tmp_path))


def test_a_manifest_is_written_whole(tmp_path):
    manifest = write(tmp_path, LENGTHS, TINY)
    assert Manifest.load(tmp_path) == manifest
    assert not (tmp_path / "manifest.json.new").exists()
