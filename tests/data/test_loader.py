"""The training loader continues exactly where it was, with and without threads that read ahead."""

import itertools

import numpy as np
import pytest
import torch
from tests.data.small_datasets import write

from eagle3.data.dataset import SequenceDataset
from eagle3.data.loader import PackedLoader, SequentialLoader, TrainBatch
from eagle3.data.packing import Packing
from eagle3.data.shards import HiddenStates
from eagle3.drafter.batch import valid_counts
from eagle3.errors import DataError

LENGTHS = [int(n) for n in np.random.default_rng(0).integers(3, 20, 40)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> SequenceDataset:
    folder = tmp_path_factory.mktemp("states") / "d"
    write(folder, LENGTHS, shard_gib=2e-6)
    return SequenceDataset(HiddenStates(folder), np.arange(len(LENGTHS)), [1])


def loader_of(
    dataset: SequenceDataset, workers: int = 0, world: int = 1, rank: int = 0, accumulate: int = 1
) -> PackedLoader:
    packing = Packing(dataset.lengths, 40, seed=7, epochs=3, world=world)
    return PackedLoader(dataset, packing, torch.from_numpy(dataset.scored(3)), rank, accumulate, workers)


def ids(batch: TrainBatch) -> list[int]:
    return batch.batch.sample_ids.tolist()


def whole_run(dataset: SequenceDataset) -> list[list[list[int]]]:
    loader = loader_of(dataset)
    epochs = []
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        epochs.append([ids(batch) for batch in loader])
    return epochs


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_interrupted_anywhere_it_continues_with_the_next_batch(dataset: SequenceDataset, workers: int) -> None:
    whole = whole_run(dataset)
    for epoch, stop in itertools.product(range(3), (0, 1, 5, len(whole[0]) - 1, len(whole[0]))):
        first = loader_of(dataset, workers)
        first.sampler.set_epoch(epoch)
        got = [ids(batch) for batch in itertools.islice(iter(first), stop)]
        second = loader_of(dataset, workers)
        second.load_state_dict(first.state_dict())
        second.sampler.set_epoch(epoch)  # as Lightning does on resume
        assert got + [ids(batch) for batch in second] == whole[epoch]
        for later in range(epoch + 1, 3):
            second.sampler.set_epoch(later)
            assert [ids(batch) for batch in second] == whole[later]


def test_every_sample_once_an_epoch(dataset: SequenceDataset) -> None:
    for epoch in whole_run(dataset):
        assert sorted(i for batch in epoch for i in batch) == sorted(dataset.sample_ids.tolist())


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_step_counts_are_those_of_all_batches_of_the_step(
    dataset: SequenceDataset, world: int, accumulate: int
) -> None:
    ranks = [list(loader_of(dataset, world=world, rank=rank, accumulate=accumulate)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    for first in range(0, len(ranks[0]), accumulate):
        step = [batch for batches in ranks for batch in batches[first : first + accumulate]]
        counted = sum(valid_counts(b.batch.loss_mask, b.batch.document, 3) for b in step)
        assert all(b.step_counts.tolist() == counted.tolist() for b in step)


def test_an_error_while_reading_ahead_is_told(dataset: SequenceDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: SequenceDataset, chosen: list[int], pin: bool = False) -> None:
        raise DataError("shard is gone")

    monkeypatch.setattr(SequenceDataset, "batch", broken)
    with pytest.raises(DataError, match="shard is gone"):
        next(iter(loader_of(dataset, workers=2)))


@pytest.mark.parametrize("workers", [0, 2])
def test_sequential_reads_once_in_order(dataset: SequenceDataset, workers: int) -> None:
    loader = SequentialLoader(dataset, [[0, 1], [2], [3, 4]], workers)
    for _ in range(2):
        assert [b.sample_ids.tolist() for b in loader] == [[100, 103], [106], [109, 112]]
    assert len(loader) == 3
