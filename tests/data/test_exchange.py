"""Hidden states to other projects' formats and back; what is refused, and why."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.data.exchange_cases import LENGTHS, Silent, back, content, require_equal, there, write_states, write_target

from eagle3.data import space
from eagle3.data.datamodule import HiddenStatesData, LoaderSettings
from eagle3.data.exchange.exporting import export_data
from eagle3.data.exchange.norm import FinalNorm
from eagle3.data.exchange.table import FORMATS
from eagle3.data.shards import HiddenStates
from eagle3.data.verify import verify
from eagle3.errors import ConfigError, DataError
from eagle3.target.info import TargetInfo

OWN, WITH_LAST = [1, 3], [1, 3, 4]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, target: TargetInfo) -> HiddenStates:
    return write_states(tmp_path_factory.mktemp("own") / "d", target, OWN, LENGTHS)


@pytest.fixture(scope="module")
def with_last(tmp_path_factory: pytest.TempPathFactory, target: TargetInfo) -> HiddenStates:
    """With the state before the final norm too, as boundary 4."""
    return write_states(tmp_path_factory.mktemp("last") / "d", target, WITH_LAST, LENGTHS)


@pytest.mark.parametrize(
    ("name", "last", "final"),
    [
        ("specforge", False, None),
        ("speculators", True, None),
        ("speculators-v1", True, None),
        ("speculators-v1", False, "post"),
    ],
)
def test_round_trip_is_bitwise(tmp_path, target, own, with_last, name, last, final):
    states, boundaries = (with_last, WITH_LAST) if last else (own, OWN)
    got = back(there(states, tmp_path / "there", name, final=final), tmp_path / "back", name, boundaries, target, final)
    require_equal(states, got)
    assert got.manifest.boundaries == boundaries
    assert not list(verify(tmp_path / "back"))
    # and what is exported of that is what was exported first
    again = there(got, tmp_path / "again", name, final=final)
    files = [p.relative_to(tmp_path / "there") for p in (tmp_path / "there").rglob("*.*t*s")]
    assert all((tmp_path / "there" / f).read_bytes() == (again / f).read_bytes() for f in files)


@pytest.mark.parametrize("name", ["speculators", "speculators-v1"])
def test_a_norm_that_is_undone_is_made_again_by_the_trainers_norm(tmp_path, target, own, name):
    """The dataset has only the state after it: what is written is another state, with the same norm."""
    got = back(there(own, tmp_path / "there", name, target), tmp_path / "back", name, OWN, target)
    require_equal(own, got, ["boundary.1", "boundary.3", "input_ids", "loss_mask"])
    for i in range(len(own)):
        a, b = content(own, i)["final"].float(), content(got, i)["final"].float()
        assert ((a - b).abs() <= a.abs() * 2**-7).all()
        assert (a == b).float().mean() > 0.7


def test_an_import_is_what_training_reads(tmp_path, target, own):
    folder = there(own, tmp_path / "there", "specforge")
    back(folder, tmp_path / "back", "specforge", OWN, target)
    settings = LoaderSettings(tokens_per_batch=20, accumulate=1, epochs=1, steps=3, seed=0)
    data = HiddenStatesData(tmp_path / "back", tmp_path / "back", OWN, settings)
    seen = [i for batch in data.train_dataloader() for i in batch.batch.sample_ids.tolist()]
    held_out = [i for batch in data.val_dataloader() for i in batch.sample_ids.tolist()]
    assert held_out
    assert sorted(seen + held_out) == list(range(len(LENGTHS)))
    assert (tmp_path / "back" / "DONE").exists()


def test_columns_may_be_in_another_order_than_ours(tmp_path, target, own):
    export_data(own.folder, tmp_path / "there", FORMATS["specforge"], Silent(), boundaries=[3, 1])
    got = back(tmp_path / "there", tmp_path / "back", "specforge", [3, 1], target)
    require_equal(own, got)


def test_a_part_of_the_boundaries_is_exported(tmp_path, target, own):
    export_data(own.folder, tmp_path / "there", FORMATS["specforge"], Silent(), boundaries=[3])
    got = back(tmp_path / "there", tmp_path / "back", "specforge", [3], target)
    require_equal(own, got, ["boundary.3", "final"])


def test_the_gain_of_the_norm_is_the_architectures(tmp_path):
    """Gemma multiplies with one plus the weight: taking the weight would be a silent mistake."""
    llama = FinalNorm.of(write_target(tmp_path / "llama"))
    gemma = FinalNorm.of(write_target(tmp_path / "gemma", model_type="gemma2", head_dim=4))
    assert torch.equal(gemma.gain, llama.gain + 1)
    unknown = FinalNorm.of(write_target(tmp_path / "unknown", model_type="nobody-knows"))
    assert torch.equal(unknown.gain, llama.gain)
    assert unknown.eps == pytest.approx(llama.eps)


@pytest.mark.parametrize(
    ("name", "boundaries", "final", "error", "message"),
    [
        ("specforge", [1], None, ConfigError, "the files have 2 states before the last one"),
        ("specforge", [1, 2, 3], None, ConfigError, "the files have 2 states before the last one"),
        ("specforge", [1, 3, 4], None, ConfigError, r"within 1\.\.3"),
        ("specforge", [0, 3], None, ConfigError, r"within 1\.\.3"),
        ("specforge", [3, 3], None, ConfigError, "each once"),
        ("specforge", [1, 3], "pre", DataError, "Add --final post"),
        ("speculators-v1", [1, 3], "post", DataError, "Add --final pre"),
        ("speculators", [1, 3], None, DataError, "not an Arrow dataset"),
    ],
)
def test_what_the_import_refuses(tmp_path, target, own, with_last, name, boundaries, final, error, message):
    written = "specforge" if name == "speculators" else name
    folder = there(with_last if name == "speculators-v1" else own, tmp_path / "there", written)
    with pytest.raises(error, match=message):
        back(folder, tmp_path / "back", name, boundaries, target, final)


def spoil_ids(path: Path) -> None:
    tensors = load_file(path)
    save_file(tensors | {"token_ids": tensors["token_ids"] + 1}, path)


def widen(path: Path) -> None:
    tensors = load_file(path)
    save_file(tensors | {"hidden_states": tensors["hidden_states"].repeat(1, 1, 2)}, path)


def shorten(path: Path) -> None:
    save_file({name: tensor[:-1] for name, tensor in load_file(path).items()}, path)


def drop_layer(path: Path) -> None:
    tensors = load_file(path)
    save_file(tensors | {"hidden_states": tensors["hidden_states"][:, 1:].contiguous()}, path)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "truncated"),
        (lambda path: path.write_bytes(b""), "truncated"),
        (spoil_ids, "its token ids are not those of its sequence"),
        (widen, "states .* where 3 of 12 tokens and 16 numbers are due"),
        (shorten, "states .* where 3 of 12 tokens and 16 numbers are due"),
        (drop_layer, "states .* where 3 of 12 tokens and 16 numbers are due"),
        (lambda path: save_file({"hidden_states": torch.zeros(2)}, path), "should hold token_ids"),
    ],
)
def test_a_wrong_file_is_named_and_the_rest_continues(tmp_path, target, with_last, harm, message):
    folder = there(with_last, tmp_path / "there", "speculators")
    wrong = folder / "hidden_states" / "hs_3.safetensors"
    right = wrong.read_bytes()
    harm(wrong)
    with pytest.raises(DataError, match=f"hs_3.safetensors.*{message}"):
        back(folder, tmp_path / "back", "speculators", OWN, target)
    wrong.write_bytes(right)
    require_equal(with_last, back(folder, tmp_path / "back", "speculators", OWN, target), ["boundary.1", "final"])


def test_a_sequence_without_a_file_is_left_out(tmp_path, target, with_last):
    folder = there(with_last, tmp_path / "there", "speculators")
    (folder / "hidden_states" / "hs_1.safetensors").unlink()
    got = back(folder, tmp_path / "back", "speculators", OWN, target)
    assert got.sample_ids.tolist() == [0, 2, 3, 4, 5]
    assert '"missing": 1' in (tmp_path / "back" / "prepare.json").read_text()


def test_states_that_are_not_finite_stay_unused(tmp_path, target, own):
    folder = there(own, tmp_path / "there", "specforge")
    path = folder / "rows_0-5000" / "data_2.ckpt"
    stored = torch.load(path, weights_only=True)
    stored["aux_hidden_state"][0, 1, 20] = float("nan")
    torch.save(stored, path)
    got = back(folder, tmp_path / "back", "specforge", OWN, target)
    assert got.manifest.quarantined == {"2": "nan"}
    assert got.sample_ids.tolist() == [0, 1, 3, 4, 5]
    assert not list(verify(tmp_path / "back"))


@pytest.mark.parametrize("value", [-100, 0.5])
def test_a_loss_mask_of_other_values_is_not_taken_for_ones(tmp_path, target, own, value):
    folder = there(own, tmp_path / "there", "specforge")
    path = folder / "rows_0-5000" / "data_2.ckpt"
    stored = torch.load(path, weights_only=True)
    stored["loss_mask"] = torch.where(stored["loss_mask"] == 0, value, stored["loss_mask"].double())
    torch.save(stored, path)
    with pytest.raises(DataError, match=rf"data_2\.ckpt: its loss mask holds {value}"):
        back(folder, tmp_path / "back", "specforge", [1, 3], target)


def test_files_are_never_unpickled(tmp_path, target, own):
    folder = there(own, tmp_path / "there", "specforge")
    torch.save({"input_ids": Path("harm")}, folder / "rows_0-5000" / "data_0.ckpt")
    with pytest.raises(DataError, match=r"data_0.ckpt can't be read"):
        back(folder, tmp_path / "back", "specforge", OWN, target)


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path, target, own, monkeypatch):
    folder = there(own, tmp_path / "there", "specforge")
    monkeypatch.setattr(space, "free_bytes", lambda _: -(1 << 20))
    with pytest.raises(ConfigError, match=r"too few\. Choose a folder on a larger disk"):
        there(own, tmp_path / "more", "specforge")
    assert not (tmp_path / "more").exists()
    with pytest.raises(ConfigError, match="too few"):
        back(folder, tmp_path / "back", "specforge", OWN, target)
    assert not list((tmp_path / "back").glob("shard-*"))


def test_a_folder_of_something_else_is_left_alone(tmp_path, target, own):
    folder = there(own, tmp_path / "there", "specforge")
    with pytest.raises(ConfigError, match="was begun with format 'specforge'"):
        there(own, folder, "speculators-v1", final="post")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="is there already"):
        there(own, tmp_path / "full", "specforge")
    back(folder, tmp_path / "back", "specforge", OWN, target)
    with pytest.raises(ConfigError, match=r"was begun with boundaries \[1, 3\]"):
        back(folder, tmp_path / "back", "specforge", [1, 2], target)


def test_the_norm_is_not_undone_blindly(tmp_path, target, own):
    with pytest.raises(ConfigError, match="Add --target FOLDER"):
        there(own, tmp_path / "there", "speculators")
    other = dataclasses.replace(target, fingerprint="0")
    with pytest.raises(ConfigError, match="not the model"):
        there(own, tmp_path / "there", "speculators", other)
    with pytest.raises(ConfigError, match="leave --final away"):
        there(own, tmp_path / "there", "speculators", target, "post")


def test_an_export_redoes_what_is_not_whole_and_nothing_else(tmp_path, own):
    out = there(own, tmp_path / "there", "specforge")
    files = sorted(out.rglob("*.ckpt"))
    whole = [path.read_bytes() for path in files]
    files[1].write_bytes(whole[1][:-20])
    files[4].unlink()
    before = {path: path.stat().st_mtime_ns for path in (files[0], files[2], files[3], files[5])}
    there(own, out, "specforge")
    assert [path.read_bytes() for path in files] == whole
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_an_export_of_damaged_states_names_the_sequence(tmp_path, own):
    shard = own.folder / own.manifest.shards[0].file
    slot = own.layouts[0].slots["final"]
    with shard.open("r+b") as file:
        file.seek(slot.offset)
        first = file.read(1)
        file.seek(slot.offset)
        file.write(bytes([first[0] ^ 1]))
    try:
        with pytest.raises(DataError, match=rf"states of sequence {int(own.sample_ids[0])} are not those"):
            export_data(own.folder, tmp_path / "out", FORMATS["specforge"], Silent())
    finally:
        with shard.open("r+b") as file:
            file.seek(slot.offset)
            file.write(first)


def test_other_files_of_the_source_do_no_harm(tmp_path, target, own):
    folder = there(own, tmp_path / "there", "speculators-v1", final="post")
    torch.save(torch.ones(3), folder / "token_freq.pt")
    shutil.move(folder / "data_4.pt", folder / "data_12.pt")
    got = back(folder, tmp_path / "back", "speculators-v1", OWN, target, "post")
    order = [0, 1, 2, 3, 5, 4]  # natural: 12 after 5
    for i, j in enumerate(order):
        assert np.array_equal(content(got, i)["input_ids"], content(own, j)["input_ids"])
