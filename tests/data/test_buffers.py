"""Memory of a batch is used again when nobody holds the batch, and never before."""

import pickle
import random
import threading

import torch
from tests.data.small_datasets import write

from eagle3.data.buffers import Buffers
from eagle3.data.dataset import SequenceDataset
from eagle3.data.loader import SequentialLoader
from eagle3.data.shards import HiddenStates


def test_it_is_used_again_once_the_last_view_is_gone() -> None:
    buffers = Buffers()
    first = buffers.take(1000)
    place, view = first.data_ptr(), first[10:20].view(torch.int16)
    del first
    second = buffers.take(1000)
    assert second.data_ptr() != place
    del view
    assert buffers.take(900).data_ptr() == place


def test_there_are_no_more_than_were_in_use_at_a_time() -> None:
    buffers = Buffers()
    for size in [10, 5000, 300, 7000, 20, 7000]:
        held = [buffers.take(size), buffers.take(size)]
        del held
    buffers.take(1)
    assert len(buffers._free) + len(buffers._returned) == 2


def test_no_two_threads_have_the_same() -> None:
    buffers, wrong = Buffers(), []

    def work(mark: int) -> None:
        draw = random.Random(mark)
        for _ in range(300):
            held = [buffers.take(draw.randrange(1, 5000)).fill_(mark) for _ in range(draw.randrange(1, 4))]
            if any((block != mark).any() for block in held):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_batch_that_is_kept_stays_as_it_was(tmp_path) -> None:
    write(tmp_path, [5, 9, 3, 12, 7])
    dataset = SequenceDataset(HiddenStates(tmp_path), torch.arange(5).numpy(), [1, 3])
    kept = [batch.final for batch in SequentialLoader(dataset, [[0], [1], [2], [3], [4]] * 3, num_workers=2)]
    for i, final in enumerate(kept):
        assert torch.equal(final, dataset[i % 5]["final"])


def test_another_process_has_its_own(tmp_path) -> None:
    write(tmp_path, [5, 9, 3])
    dataset = SequenceDataset(HiddenStates(tmp_path), torch.arange(3).numpy(), [1])
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy.batch([0, 2]).states, dataset.batch([0, 2]).states)
