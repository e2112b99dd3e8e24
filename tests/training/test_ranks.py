"""What starts ranks, and what is told of one that fails. tests/training/test_several_ranks.py starts real ones."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.made import load_job, make_job
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from eagle3.config.schema import TrainerConfig
from eagle3.data.datamodule import HiddenStatesData, LoaderSettings
from eagle3.data.targets import fill_target_top
from eagle3.errors import ConfigError, DataError
from eagle3.training.frozen import Frozen
from eagle3.training.machine import Machine
from eagle3.training.ranks import environment, explain, rank_log, torchrun_arguments
from eagle3.training.run import open_data


def failures(ended: dict[int, tuple[int, int]]) -> dict[int, ProcessFailure]:
    """By rank, of (exit code, second in which torchrun saw it)."""
    found = {}
    for rank, (code, second) in ended.items():
        found[rank] = ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=code, error_file="none")
        found[rank].timestamp = second
    return found


LOST = "RuntimeError: Connection closed by peer"


@pytest.mark.parametrize(
    ("ended", "said", "code", "starts"),
    [
        # The lowest exit is not the cause: rank 0 lost rank 1, or was stopped because of it.
        ({0: (1, 7), 1: (-9, 7)}, {0: LOST}, 1, "Rank 1 was ended by SIGKILL"),
        ({0: (-15, 7), 1: (-9, 7)}, {}, 1, "Rank 1 was ended by SIGKILL"),
        ({0: (-9, 57), 1: (1, 7)}, {1: "ValueError: no"}, 1, "Rank 1 ended with exit code 1: ValueError: no"),
        ({0: (1, 7), 1: (1, 7)}, {0: LOST, 1: "error: The loss became nan"}, 1, "The loss became nan (rank 1"),
        (
            {0: (130, 7), 1: (1, 7)},
            {0: "error: Interrupted", 1: "error: a shard is gone"},
            1,
            "a shard is gone (rank 1",
        ),
        ({0: (1, 7)}, {0: LOST, 1: "error: The loss became nan"}, 1, "The loss became nan (rank 1"),
        ({0: (2, 7), 1: (2, 7)}, dict.fromkeys((0, 1), "error: no GPU"), 2, "no GPU (rank 0"),
        ({0: (130, 7), 1: (-15, 7)}, {0: "error: Interrupted; saved"}, 130, "Interrupted; saved"),
        ({1: (-11, 7)}, {}, 1, "Rank 1 was ended by SIGSEGV."),
        ({1: (3, 7)}, {}, 1, "Rank 1 ended with exit code 3: nothing in its log"),
    ],
)
def test_what_ended_it(
    tmp_path: Path, ended: dict[int, tuple[int, int]], said: dict[int, str], code: int, starts: str
) -> None:
    logs = {rank: rank_log(tmp_path, rank) for rank in range(2)}
    for rank, line in said.items():
        logs[rank].write_text(f"much before\n{line}\n")
    found, text = explain(failures(ended), logs)
    assert found == code
    assert text.startswith(starts)
    if code == 1:
        assert "train.rank1.log" in text


def test_torchrun_is_told_of_nodes() -> None:
    alone = torchrun_arguments(TrainerConfig(devices=8), 0)
    assert "--standalone" in alone
    assert "--nproc-per-node=8" in alone
    second = torchrun_arguments(TrainerConfig(devices=4, nodes=2, master="10.0.0.1:29500"), 1)
    assert second[-4:] == ["--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=29500"]


def test_what_is_set_already_stays() -> None:
    given = environment(TrainerConfig(devices=2), {"OMP_NUM_THREADS": "3"})
    assert "OMP_NUM_THREADS" not in given
    assert given["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in environment(TrainerConfig(nodes=2), {})


def test_another_number_of_processes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": 2, "RANK": 1, "LOCAL_WORLD_SIZE": 2, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    config = TrainerConfig(accelerator="cpu", devices=2, nodes=2, master="h:1")
    with pytest.raises(ConfigError, match=r"trainer\.nodes=2, but 2 processes were started here and 2 in all"):
        Machine.of(config)
    config.nodes = 1
    assert (Machine.of(config).rank, Machine.of(config).world) == (1, 2)


def held_out(tmp_path: Path, tokens: int, world: int) -> list[list[list[int]]]:
    """Sample ids by rank and batch."""

    def of(rank: int) -> Iterable[Any]:
        settings = LoaderSettings(tokens, 1, 1, 3, 0, rank=rank, world=world)
        return HiddenStatesData(tmp_path / "states", tmp_path / "prompts", [1, 3], settings).val_dataloader()

    return [[batch.sample_ids.tolist() for batch in of(rank)] for rank in range(world)]


@pytest.mark.parametrize(("tokens", "world"), [(64, 1), (64, 2), (64, 3), (10_000, 3), (10_000, 8)])
def test_ranks_have_equally_many_held_out_batches(tmp_path: Path, tokens: int, world: int) -> None:
    make_job(tmp_path)
    ranks = held_out(tmp_path, tokens, world)
    assert len({len(batches) for batches in ranks}) == 1
    assert all(batches[0] for batches in ranks)
    assert sorted(i for batches in ranks for batch in batches for i in batch) == list(range(5, 85, 10))


def test_more_ranks_than_held_out_sequences(tmp_path: Path) -> None:
    make_job(tmp_path)
    with pytest.raises(DataError, match=r"trainer\.devices"):
        held_out(tmp_path, 64, 9)


def test_ranks_compute_the_choices_together(tmp_path: Path) -> None:
    """Wherever one begins, the choices are the same; and it takes what another has left."""
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out")
    head = Frozen.load(job.target, torch.arange(32)).head
    assert head is not None
    found = []
    for begin in (0.0, 0.5):
        for kept in (tmp_path / "states").glob("target_top-*"):
            kept.unlink()
        data = open_data(job, Machine(torch.device("cpu")))
        fill_target_top([data.train_set], head, "cpu", _Quiet(), begin)
        found.append(data.train_set.target_top)
    assert torch.equal(found[0], found[1])


class _Quiet:
    """A reporter that nobody reads."""

    def log(self, values: dict[str, Any], step: int | None = None) -> None: ...

    def progress(self, done: float, total: float, **fields: Any) -> None: ...

    def note(self, text: str) -> None: ...
