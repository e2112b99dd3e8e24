"""Lightning's view of the data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.data.small_datasets import prompts_of, write

from eagle3.data.datamodule import HiddenStatesData, LoaderSettings
from eagle3.data.loader import TrainBatch
from eagle3.data.placement import Prompts
from eagle3.errors import DataError

LENGTHS = [int(n) for n in np.random.default_rng(1).integers(4, 16, 30)]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    write(tmp_path / "states", LENGTHS)
    prompts = prompts_of(LENGTHS)
    tensors = {name: torch.from_numpy(getattr(prompts, name)) for name in Prompts.__dataclass_fields__}
    held_out = torch.tensor([i % 5 == 0 for i in range(len(LENGTHS))], dtype=torch.uint8)
    (tmp_path / "prompts").mkdir()
    save_file(tensors | {"held_out": held_out}, tmp_path / "prompts" / "prompts.safetensors")
    return tmp_path / "states", tmp_path / "prompts"


def data_of(folders: tuple[Path, Path], rank: int = 0, world: int = 1) -> HiddenStatesData:
    settings = LoaderSettings(
        tokens_per_batch=32, accumulate=2, epochs=3, steps=3, seed=0, num_workers=0, rank=rank, world=world
    )
    return HiddenStatesData(*folders, [1, 3], settings)


def test_training_and_held_out_share_nothing_and_are_everything(folders: tuple[Path, Path]) -> None:
    data = data_of(folders)
    trained = [i for batch in data.train_dataloader() for i in batch.batch.sample_ids.tolist()]
    held_out = [i for batch in data.val_dataloader() for i in batch.sample_ids.tolist()]
    assert sorted(trained + held_out) == prompts_of(LENGTHS).sample_ids.tolist()
    assert held_out == prompts_of(LENGTHS).sample_ids[::5].tolist()


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batches_out(folders: tuple[Path, Path], world: int) -> None:
    ranks = [data_of(folders, rank, world) for rank in range(world)]
    training = [list(rank.train_dataloader()) for rank in ranks]
    assert len({len(batches) for batches in training}) == 1
    trained = sorted(i for batches in training for batch in batches for i in batch.batch.sample_ids.tolist())
    assert trained == sorted(ranks[0].train_set.sample_ids.tolist())
    validation = [i for rank in ranks for batch in rank.val_dataloader() for i in batch.sample_ids.tolist()]
    assert sorted(validation) == sorted(ranks[0].held_out_set.sample_ids.tolist())


def test_vocabulary_is_counted_on_the_training_split_alone(folders: tuple[Path, Path]) -> None:
    data, prompts = data_of(folders), prompts_of(LENGTHS)
    rows = [slice(prompts.offsets[i], prompts.offsets[i + 1]) for i in range(len(LENGTHS)) if i % 5]
    ids, mask = data.train_set.ids_and_mask()
    assert ids.tolist() == np.concatenate([prompts.input_ids[r] for r in rows]).tolist()
    assert mask.tolist() == np.concatenate([prompts.loss_mask[r] for r in rows]).tolist()


def test_batches_move_whole(folders: tuple[Path, Path]) -> None:
    data = data_of(folders)
    moved = data.transfer_batch_to_device(next(iter(data.train_dataloader())), torch.device("meta"), 0)
    assert isinstance(moved, TrainBatch)
    assert moved.step_counts.is_meta
    assert moved.batch.states.is_meta


def test_an_incomplete_dataset_is_refused(folders: tuple[Path, Path]) -> None:
    manifest = folders[0] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
    with pytest.raises(DataError, match="is not complete"):
        data_of(folders)
