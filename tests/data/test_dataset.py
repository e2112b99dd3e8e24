"""Splitting by sample id, and batches that are exactly what the shards hold."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.data.small_datasets import SHAPE, prompts_of, states_of, write

from eagle3.data import targets
from eagle3.data.dataset import SequenceDataset, Split
from eagle3.data.placement import Prompts
from eagle3.data.shards import HiddenStates
from eagle3.data.targets import fill_target_top, target_rows
from eagle3.drafter.batch import valid_positions
from eagle3.drafter.ttt import target_argmax
from eagle3.errors import DataError
from eagle3.metrics import JsonlReporter

LENGTHS = [5, 9, 3, 12, 7]


def save_prompts(folder: Path, prompts: Prompts, held_out: list[int]) -> Path:
    folder.mkdir()
    tensors = {name: torch.from_numpy(getattr(prompts, name)) for name in Prompts.__dataclass_fields__}
    save_file(tensors | {"held_out": torch.tensor(held_out, dtype=torch.uint8)}, folder / "prompts.safetensors")
    return folder


@pytest.fixture
def states(tmp_path: Path) -> HiddenStates:
    write(tmp_path / "states", LENGTHS)
    return HiddenStates(tmp_path / "states")


def test_split_is_by_sample_id(tmp_path: Path, states: HiddenStates) -> None:
    # The prompts in another order than the shards, and with one more that was not extracted.
    prompts = prompts_of([4, *LENGTHS], first_id=97)
    order = [3, 0, 5, 1, 4, 2]
    starts = prompts.offsets[:-1]
    shuffled = Prompts(
        np.concatenate([prompts.input_ids[starts[i] : prompts.offsets[i + 1]] for i in order]),
        np.concatenate([prompts.loss_mask[starts[i] : prompts.offsets[i + 1]] for i in order]),
        np.concatenate([[0], np.cumsum(prompts.lengths[order])]),
        prompts.sample_ids[order],
    )
    held_out = [int(prompts.sample_ids[i]) in (103, 112) for i in order]
    split = Split.of(states, save_prompts(tmp_path / "p", shuffled, held_out))
    assert states.sample_ids[split.held_out].tolist() == [103, 112]
    assert states.sample_ids[split.train].tolist() == [100, 106, 109]


@pytest.mark.parametrize(
    ("prompts", "held_out", "message"),
    [
        (prompts_of(LENGTHS[:-1]), [1, 0, 0, 0], "the first is sample 112.* are not in"),
        (prompts_of([5, 9, 3, 11, 7]), [1, 0, 0, 0, 0], "sample 109 has 12 tokens, but 11"),
        (prompts_of(LENGTHS), [0, 0, 0, 0, 0], "none to hold out"),
        (prompts_of(LENGTHS), [1, 1, 1, 1, 1], "none to train on"),
        (prompts_of(LENGTHS), [1, 0], "another length than sample_ids"),
        (prompts_of([]), [], "are not in"),
    ],
    ids=["unknown-sample", "other-length", "nothing-held-out", "nothing-to-train", "torn", "empty"],
)
def test_prompts_that_do_not_fit(
    tmp_path: Path, states: HiddenStates, prompts: Prompts, held_out: list[int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Split.of(states, save_prompts(tmp_path / "p", prompts, held_out))


def test_batch_is_what_was_written(states: HiddenStates) -> None:
    dataset = SequenceDataset(states, np.arange(5), [3, 1])
    chosen = [3, 0, 4]
    batch = dataset.batch(chosen)
    prompts = prompts_of(LENGTHS)
    start = 0
    for n, i in enumerate(chosen):
        at, wanted = slice(start, start + LENGTHS[i]), states_of(LENGTHS[i], i)
        row = prompts.offsets[i]
        assert torch.equal(batch.states[at, : SHAPE.hidden_size], wanted["boundary.1"])
        assert torch.equal(batch.states[at, SHAPE.hidden_size :], wanted["boundary.3"])
        assert torch.equal(batch.final[at], wanted["final"])
        assert batch.input_ids[at].tolist() == prompts.input_ids[row : row + LENGTHS[i]].tolist()
        assert batch.loss_mask[at].tolist() == (prompts.loss_mask[row : row + LENGTHS[i]] == 1).tolist()
        assert batch.position[at].tolist() == list(range(LENGTHS[i]))
        assert (batch.document[at] == n).all()
        start += LENGTHS[i]
    assert start == batch.input_ids.shape[0]
    assert batch.sample_ids.tolist() == [109, 100, 112]
    assert batch.target_top is None


def test_only_the_boundaries_asked_for_are_read(states: HiddenStates, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    copy = HiddenStates.copy

    def noted(self: HiddenStates, i: int, into: dict[str, torch.Tensor]) -> None:
        asked.extend(into)
        copy(self, i, into)

    monkeypatch.setattr(HiddenStates, "copy", noted)
    monkeypatch.delattr(HiddenStates, "read")
    assert SequenceDataset(states, np.arange(5), [3]).batch([0, 1]).states.shape == (14, 8)
    assert set(asked) == {"input_ids", "loss_mask", "boundary.3", "final"}


def test_boundary_that_was_not_captured(states: HiddenStates) -> None:
    with pytest.raises(DataError, match=r"has boundaries \[1, 3\], not \[2\].*layers\.capture"):
        SequenceDataset(states, np.arange(5), [1, 2])


def test_target_top_is_the_arg_max_wherever_a_step_looks(states: HiddenStates) -> None:
    dataset = SequenceDataset(states, np.arange(5), [1, 3])
    head = torch.randn(31, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    fill_target_top([dataset], head, "cpu", JsonlReporter(states.folder / "metrics.jsonl"))
    batch = dataset.batch([1, 3, 0])
    assert batch.target_top is not None
    wanted = (batch.final.double() @ head.double().t()).argmax(-1)
    looked_at = torch.zeros(len(wanted), dtype=torch.bool)
    for k, valid in enumerate(valid_positions(batch.loss_mask, batch.document, 4)):
        looked_at[valid.nonzero()[:, 0] + 1 + k] = True
    assert looked_at.any()
    assert torch.equal(batch.target_top[looked_at], wanted[looked_at])
    assert not batch.target_top[~looked_at].any()


def test_target_rows() -> None:
    # Position p's distribution is for x_{p+1}: p=1 on, because step 0 at t=0 is compared with T_1.
    assert target_rows(np.array([1, 1, 0, 1, 1, 0])).tolist() == [2, 3]


def test_the_targets_choices_are_kept_for_the_next_training(states: HiddenStates, monkeypatch) -> None:
    dataset = SequenceDataset(states, np.arange(len(states)), [3])
    head = torch.randn(60, states.manifest.hidden_size, generator=torch.Generator().manual_seed(0))
    reporter = JsonlReporter(states.folder / "metrics.jsonl")
    asked: list[int] = []

    def counted(final, *args):
        if len(asked) == 2:
            raise KeyboardInterrupt
        if len(final):  # a sequence may have none
            asked.append(len(final))
        return target_argmax(final, *args)

    monkeypatch.setattr(targets, "target_argmax", counted)
    with pytest.raises(KeyboardInterrupt):
        fill_target_top([dataset], head, "cpu", reporter)
    assert dataset.target_top is None
    first, asked[:] = len(asked), [0, 0, 0]
    fill_target_top([dataset], head, "cpu", reporter)
    whole = dataset.target_top
    assert whole is not None
    sequences = [i for i in range(len(states)) if len(target_rows(dataset[i]["loss_mask"].numpy()))]
    assert len(asked) - 3 == len(sequences) - first  # the rest only
    monkeypatch.setattr(targets, "target_argmax", lambda *_: pytest.fail("it was known"))
    dataset.target_top = None
    fill_target_top([dataset], head, "cpu", reporter)
    assert torch.equal(dataset.target_top, whole)
    monkeypatch.setattr(targets.os, "open", lambda *_, **__: (_ for _ in ()).throw(OSError("read-only")))
    monkeypatch.setattr(targets, "target_argmax", target_argmax)
    fill_target_top([dataset], head, "cpu", reporter)
    assert torch.equal(dataset.target_top, whole)
