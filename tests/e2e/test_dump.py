"""The dump plugin in a real SGLang server on the CPU against transformers on the same weights: Qwen3.

Llama is in test_extract.py, DeepSeek-V3 and Kimi-K2.5 in test_dump_mla.py.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.e2e.dumping import DumpTests, Served, config, serve
from tests.e2e.models import build, tiny_llama, tiny_qwen3
from tests.e2e.placing import place

from eagle3.errors import ServerError
from eagle3.server.flags import server_command
from eagle3.server.launch import Server

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    yield from serve(tiny_qwen3, [1, 3, 5], tmp_path_factory.mktemp("qwen3"))


class TestDump(DumpTests):
    """Qwen3."""


def test_a_plugin_that_refuses_is_an_error_with_its_reason(tmp_path):
    """Here a radix cache, which would keep rows from being computed."""
    build(tiny_llama(), tmp_path / "model")
    placed = place(tmp_path / "data", {1: [5, 6]}, [1], 64, shards=1)
    command = server_command(config(tmp_path / "model"), "extraction", tmp_path / "model", dump=placed.work)
    command = replace(command, argv=tuple(word for word in command.argv if word != "--disable-radix-cache"))
    with pytest.raises(ServerError, match="the dump plugin refuses: hidden states cannot be dumped with a radix cache"):
        Server.start(command, log=tmp_path / "server.log", timeout_s=900, work=placed.work)
