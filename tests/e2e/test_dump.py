"""The dump plugin in a real SGLang server on the CPU against transformers on the same weights: Llama and Qwen3."""

from collections.abc import Iterator

import pytest
from tests.e2e.dumping import DumpTests, Served, config, serve
from tests.e2e.models import build, tiny_llama, tiny_qwen3
from tests.e2e.placing import place

from eagle3.errors import ServerError
from eagle3.server.flags import server_command
from eagle3.server.launch import Server

pytestmark = pytest.mark.e2e
MODELS = {"llama": tiny_llama, "qwen3": tiny_qwen3}


@pytest.fixture(scope="module", params=list(MODELS))
def served(request, tmp_path_factory) -> Iterator[Served]:
    yield from serve(MODELS[request.param], [1, 3, 5], tmp_path_factory.mktemp(request.param))


class TestDump(DumpTests):
    """Dense models."""


def test_a_plugin_that_refuses_is_an_error_with_its_reason(tmp_path):
    build(tiny_llama(), tmp_path / "model")
    placed = place(tmp_path / "data", {1: [5, 6]}, [1], 32, shards=1)
    command = server_command(config(tmp_path / "model"), "extraction", tmp_path / "model", dump=placed.work)
    with pytest.raises(ServerError, match="hidden size is 64, the dataset's is 32"):
        Server.start(command, log=tmp_path / "server.log", timeout_s=900, work=placed.work)
