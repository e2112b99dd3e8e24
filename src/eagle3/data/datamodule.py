"""Lightning's view of the data: the loaders of a rank, over one dataset of hidden states."""

from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch as pl
import torch

from eagle3.data.dataset import SequenceDataset, Split
from eagle3.data.loader import PackedLoader, SequentialLoader, TrainBatch
from eagle3.data.packing import Packing, in_order, split_to
from eagle3.data.shards import HiddenStates
from eagle3.data.upload import upload
from eagle3.drafter.batch import Batch


@dataclass(frozen=True)
class LoaderSettings:
    """How the data is cut into batches and read."""

    tokens_per_batch: int
    accumulate: int
    epochs: int
    steps: int
    """Training-time-test steps."""
    seed: int
    num_workers: int = 0
    pin: bool = False
    rank: int = 0
    world: int = 1


class HiddenStatesData(pl.LightningDataModule):
    """Training and held-out split of a dataset folder."""

    def __init__(self, folder: Path, prompts: Path, boundaries: list[int], settings: LoaderSettings) -> None:
        """
        Args:
            folder: of the hidden states.
            prompts: prepare's folder, whose `held_out` splits them.

        Raises:
            DataError: the dataset is incomplete, damaged, or not of these prompts; or a split is empty.
        """
        super().__init__()
        states = HiddenStates(folder)
        split = Split.of(states, prompts)
        self.settings = settings
        self.train_set = SequenceDataset(states, split.train, boundaries)
        self.held_out_set = SequenceDataset(states, split.held_out, boundaries)
        lengths = self.train_set.lengths
        self.packing = Packing(lengths, settings.tokens_per_batch, settings.seed, settings.epochs, settings.world)
        self.held_out_batches = _shared_out(
            in_order(self.held_out_set.lengths, settings.tokens_per_batch), settings.world
        )
        self.scored = self.train_set.scored(settings.steps)
        """[n, steps]: scored positions of each training sequence."""
        self.train_loader = PackedLoader(
            self.train_set,
            self.packing,
            torch.from_numpy(self.scored),
            rank=settings.rank,
            accumulate=settings.accumulate,
            num_workers=settings.num_workers,
            pin=settings.pin,
        )

    def train_dataloader(self) -> PackedLoader:
        return self.train_loader

    def transfer_batch_to_device(
        self, batch: TrainBatch | Batch, device: torch.device, dataloader_idx: int
    ) -> TrainBatch | Batch:
        return upload(batch, device)

    def val_dataloader(self) -> SequentialLoader:
        mine = self.held_out_batches[self.settings.rank :: self.settings.world]
        return SequentialLoader(self.held_out_set, mine, self.settings.num_workers, self.settings.pin)


def _shared_out(batches: list[list[int]], world: int) -> list[list[int]]:
    """As many batches for each rank, because ranks wait for each other at every one: the last may be empty.

    Raises:
        DataError: there are fewer sequences than ranks.
    """
    batches = split_to(batches, world) if len(batches) < world else batches
    return batches + [[]] * (-len(batches) % world)
