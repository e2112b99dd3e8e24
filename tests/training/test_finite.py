"""What is not finite is told alike by every rank. Imports little: each rank is a process that imports it again."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed

from eagle3.errors import TrainingError
from eagle3.training.finite import FiniteWatch

NAN = float("nan")
CASES = [
    ([1.0, NAN], "The loss became nan in step 4, with samples 11, 12."),
    ([1.0, 1.0], "The norm of the gradient became nan in step 4, with samples 1, 2, 11, 12."),
]
"""Losses of the two ranks, whose gradient is not finite, and what both of them say."""


def _watch(rank: int, store: str, told: Any) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for losses, _ in CASES:
        watch = FiniteWatch()
        watch.loss(3, torch.tensor([10 * rank + 1, 10 * rank + 2]), torch.tensor(losses[rank]))
        watch.gradient(3, torch.tensor(NAN))
        try:
            watch.check()
        except TrainingError as error:
            told.put(str(error))
    distributed.destroy_process_group()


def test_every_rank_names_the_sequences_of_the_one_that_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    processes = [context.Process(target=_watch, args=(rank, str(tmp_path / "store"), told)) for rank in range(2)]
    for process in processes:
        process.start()
    texts = [told.get(timeout=120) for _ in range(2 * len(CASES))]
    for process in processes:
        process.join()
    for _, says in CASES:
        assert sum(text.startswith(says) for text in texts) == 2


def test_one_process_names_its_own() -> None:
    watch = FiniteWatch()
    watch.loss(0, torch.tensor([7]), torch.tensor(1.0))
    watch.gradient(0, torch.tensor(float("inf")))
    with pytest.raises(TrainingError, match="norm of the gradient became inf in step 1, with samples 7"):
        watch.check()
    watch.check()


def test_weights_that_are_ruined_by_a_sound_step_are_told_as_that() -> None:
    watch = FiniteWatch()
    watch.loss(0, torch.tensor([7]), torch.tensor(1.0))
    watch.weights(1, [torch.full((2, 2), 1e30)])
    with pytest.raises(TrainingError, match=r"norm of the weights became inf in step 1, .*lower optim\.lr"):
        watch.check()
    watch.weights(2, [torch.ones(2, 2)])
    watch.check()


def test_a_held_out_loss_names_the_sequences_of_its_batch() -> None:
    watch = FiniteWatch()
    watch.held_out(torch.tensor([1, 2]), torch.tensor(1.0))
    watch.check_held_out(5, 1.0)
    watch.held_out(torch.tensor([1, 2]), torch.tensor(1.0))
    watch.held_out(torch.tensor([4, 3]), torch.tensor(NAN))
    with pytest.raises(TrainingError, match=r"held-out loss is nan after step 9, with samples 3, 4\. .*eagle3 verify"):
        watch.check_held_out(9, NAN)


@pytest.mark.parametrize(
    ("saved", "says"), [(None, "No checkpoint was saved .* begins anew"), (4, "checkpoint of step 4 .* continues")]
)
def test_it_is_said_whether_there_is_a_checkpoint_to_continue_from(saved: int | None, says: str) -> None:
    watch = FiniteWatch()
    watch.saved = saved
    watch.loss(6, torch.tensor([7]), torch.tensor(NAN))
    with pytest.raises(TrainingError, match=says):
        watch.check()
