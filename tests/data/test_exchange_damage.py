"""Files of others that changed after they were written, or hold what no model computes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.data.exchange_cases import LENGTHS, back, require_equal, there, write_states

from eagle3.cli import main
from eagle3.data.exchange.checking import check_export
from eagle3.data.exchange.formats import Stored
from eagle3.data.exchange.marker import EXPORT
from eagle3.data.exchange.table import FORMATS
from eagle3.data.exchange.torch_files import require_intact
from eagle3.data.shards import HiddenStates
from eagle3.errors import DataError
from eagle3.target.info import TargetInfo

BOUNDARIES = [1, 3, 4]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, target: TargetInfo) -> HiddenStates:
    return write_states(tmp_path_factory.mktemp("own") / "d", target, BOUNDARIES, LENGTHS)


def same(a: Stored, b: Stored) -> bool:
    pairs = [(a.input_ids, b.input_ids), (a.loss_mask, b.loss_mask), *zip(a.columns, b.columns, strict=True)]
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("name", ["specforge", "speculators-v1"])
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_flipped_bit_is_refused_with_the_files_name_or_changes_nothing(tmp_path_factory, own, name, data):
    folder = tmp_path_factory.getbasetemp() / f"flips-{name}"
    form = FORMATS[name]
    if not folder.exists():
        there(own, folder, name)
    path = folder / form.file(2)
    right, whole = form.load(path), path.read_bytes()
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    broken = folder / "broken"
    broken.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    try:
        require_intact(broken)
        told = "" if same(form.load(broken), right) else "not noticed"
    except DataError as error:
        told = str(error)
    assert not told or str(broken) in told


@pytest.mark.parametrize("name", ["specforge", "speculators-v1"])
def test_an_import_stops_at_a_flipped_bit_of_a_state(tmp_path, target, own, name):
    folder = there(own, tmp_path / "there", name)
    path = folder / FORMATS[name].file(3)
    whole = path.read_bytes()
    state = FORMATS[name].load(path).columns[-1].contiguous().view(torch.uint8).numpy().tobytes()
    at = whole.index(state) + 17
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    boundaries = BOUNDARIES if name == "speculators-v1" else [1, 3]
    with pytest.raises(DataError, match=rf"{path.name} can't be read, it is truncated or damaged \(Bad CRC-32"):
        back(folder, tmp_path / "back", name, boundaries, target)
    path.write_bytes(whole)
    require_equal(own, back(folder, tmp_path / "back", name, boundaries, target), ["boundary.1", "final"])


def test_an_export_writes_a_file_again_whose_bits_flipped(tmp_path, own):
    folder = there(own, tmp_path / "there", "specforge")
    path = folder / FORMATS["specforge"].file(1)
    whole = path.read_bytes()
    at = whole.index(FORMATS["specforge"].load(path).columns[0].view(torch.uint8).numpy()[0].tobytes())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    there(own, folder, "specforge")
    assert path.read_bytes() == whole


def test_files_without_checksums_are_taken_as_they_are(tmp_path, target, own):
    """torch can be told not to compute them."""
    folder = there(own, tmp_path / "there", "specforge")
    path = folder / FORMATS["specforge"].file(2)
    stored = torch.load(path, weights_only=True)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(stored, path)
    finally:
        torch.serialization.set_crc32_options(True)
    require_equal(own, back(folder, tmp_path / "back", "specforge", [1, 3], target), ["boundary.1", "final"])


@pytest.mark.parametrize("value", [0.0, 1.5])
@pytest.mark.parametrize(("state", "which"), [(0, "state 0 of it"), (2, "its last state")])
def test_states_that_no_model_computes_are_named(tmp_path, target, own, state, which, value):
    folder = there(own, tmp_path / "there", "speculators")
    path = folder / "hidden_states" / "hs_4.safetensors"
    tensors = load_file(path)
    tensors["hidden_states"][:, state] = value
    save_file(tensors, path)
    with pytest.raises(
        DataError, match=rf"hs_4\.safetensors: {which} is {value:g} throughout, which no model computes"
    ):
        back(folder, tmp_path / "back", "speculators", [1, 3], target)


# -- an export, looked at again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_an_export_is_right(tmp_path, own, name):
    folder = there(own, tmp_path / "there", name)
    seen: list[tuple[int, int]] = []
    assert not list(check_export(folder, json.loads((folder / EXPORT).read_text()), lambda *at: seen.append(at)))
    assert seen[-1] == (len(LENGTHS), len(LENGTHS))


def lose(folder: Path) -> None:
    (folder / "hidden_states" / "hs_1.safetensors").unlink()


def cut(folder: Path) -> None:
    path = folder / "hidden_states" / "hs_1.safetensors"
    path.write_bytes(path.read_bytes()[:-3])


def spoil(folder: Path, name: str, value: float) -> None:
    path = folder / "hidden_states" / "hs_1.safetensors"
    tensors = load_file(path)
    tensors[name][1:] = value
    save_file(tensors, path)


def drop(folder: Path) -> None:
    path = folder / "hidden_states" / "hs_1.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"hidden_states": tensors["hidden_states"][:, :2].contiguous()}, path)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lose, "hs_1.safetensors is not there"),
        (cut, "hs_1.safetensors can't be read"),
        (
            lambda folder: spoil(folder, "hidden_states", float("inf")),
            "hs_1.safetensors has a value that is not finite",
        ),
        (lambda folder: spoil(folder, "token_ids", 5), "hs_1.safetensors: its token ids are not those of its row"),
        (drop, "states [[9, 16], [9, 16]], where 3 of 16 numbers are due"),
        (lambda folder: (folder / "work").mkdir(), "the export is not finished"),
        (lambda folder: (folder / EXPORT).write_text('{"format": "x"}'), "is not as an export writes it"),
        (lambda folder: next(folder.glob("*.arrow")).unlink(), "not an Arrow dataset"),
    ],
)
def test_faults_of_an_export_are_named(tmp_path, own, harm, says):
    folder = there(own, tmp_path / "there", "speculators")
    harm(folder)
    assert says in "\n".join(check_export(folder, json.loads((folder / EXPORT).read_text())))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_files_that_the_export_did_not_write_are_noted(tmp_path, capsys, own, name):
    """SpecForge and speculators' first format take every file of their kind in the folder."""
    folder = there(own, tmp_path / "there", name)
    first = folder / FORMATS[name].file(0)
    assert main(["verify", str(folder)]) == 0
    assert "note" not in capsys.readouterr().out
    for number in (10, 9, 11, 12):
        shutil.copy2(first, first.with_name(f"other_{number}{first.suffix}"))
    assert main(["verify", str(folder)]) == 0
    said, beside = capsys.readouterr().out, first.parent.relative_to(folder)
    named = ", ".join(str(beside / f"other_{number}{first.suffix}") for number in (9, 10, 11))
    assert f"{folder}: note: not written by the export: {named} and 1 more. " in said
    assert said.endswith(", nothing wrong\n")
