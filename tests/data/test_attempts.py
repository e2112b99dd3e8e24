"""When a lost server is replaced, and when not; what a real one does is in tests/e2e/test_losses.py."""

import pytest
from tests.e2e.extraction import Quiet

from eagle3.data.attempts import with_restarts
from eagle3.errors import DataError, ServerError, ServerLostError, ServerStalledError


class Serving:
    """A fake for the servers of one extraction: each makes so much progress, and ends so."""

    def __init__(self, *ends: tuple[int, Exception | None]) -> None:
        self.ends = list(ends)
        self.done = 0
        self.reporter = Quiet()

    def serve(self) -> None:
        progress, error = self.ends.pop(0)
        self.done += progress
        if error is not None:
            raise error

    def run(self, most: int = 2) -> int:
        return with_restarts(self.serve, lambda: self.done, most, self.reporter)


def test_a_server_that_died_after_progress_and_one_that_stalled_are_replaced():
    serving = Serving((3, ServerLostError("it was killed")), (0, ServerStalledError("no progress")), (5, None))
    assert serving.run() == 2
    assert serving.reporter.notes == [
        "it was killed",
        "starting another server, 1 of at most 2 (server.max_restarts)",
        "no progress",
        "starting another server, 2 of at most 2 (server.max_restarts)",
    ]
    assert serving.reporter.rows == [{"extract/restarts": 1}, {"extract/restarts": 2}]


def test_at_most_so_often():
    serving = Serving(*[(1, ServerStalledError("no progress"))] * 3)
    with pytest.raises(ServerStalledError, match=r"no progress\nIt is not replaced again: server\.max_restarts=2\."):
        serving.run()
    assert serving.ends == []
    with pytest.raises(ServerLostError, match=r"^gone$"):
        Serving((1, ServerLostError("gone"))).run(most=0)


@pytest.mark.parametrize(
    "error", [ServerLostError("died before it did anything"), ServerError("its plugin refuses"), DataError("disk full")]
)
def test_what_another_server_would_not_do_better(error):
    serving = Serving((0, error), (5, None))
    with pytest.raises(type(error), match=str(error)):
        serving.run()
    assert len(serving.ends) == 1
