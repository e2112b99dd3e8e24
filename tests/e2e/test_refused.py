"""A real server that the plugin refuses to dump from. One that it wrongly took is in test_wrong_dump.py."""

from dataclasses import replace

import pytest
from tests.e2e.dumping import config
from tests.e2e.models import build, tiny_llama
from tests.e2e.placing import place

from eagle3.errors import ServerError
from eagle3.server.flags import server_command
from eagle3.server.launch import Server

pytestmark = pytest.mark.e2e


def test_a_plugin_that_refuses_is_an_error_with_its_reason(tmp_path):
    """Here a radix cache, which would keep rows from being computed."""
    build(tiny_llama(), tmp_path / "model")
    placed = place(tmp_path / "data", {1: [5, 6]}, [1], 64, shards=1)
    command = server_command(config(tmp_path / "model"), "extraction", tmp_path / "model", dump=placed.work)
    command = replace(command, argv=tuple(word for word in command.argv if word != "--disable-radix-cache"))
    with pytest.raises(ServerError, match="the dump plugin refuses: hidden states cannot be dumped with a radix cache"):
        Server.start(command, log=tmp_path / "server.log", timeout_s=900, work=placed.work)
