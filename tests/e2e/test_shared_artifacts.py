"""Two runs that want the same extraction: one makes it, the other waits; a killed owner is taken over."""

import json
import signal
import time
from pathlib import Path

import pytest
from tests.e2e.chat_model import write_chat_model, write_conversations
from tests.e2e.test_run import leftovers, overrides, start

from eagle3.data.shards import HiddenStates

pytestmark = pytest.mark.e2e


def test_the_second_run_goes_on_where_the_killed_one_was(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    write_chat_model(place / "model")
    write_conversations(place / "chat.jsonl", 200)
    arguments = [*overrides(place), "until=extract", "server.concurrency=1"]
    owner = start(arguments, tmp_path)
    deadline = time.monotonic() + 300
    while not any(path.read_text() for path in (place / "artifacts" / "extract").glob("*/*/work/ledger-*.jsonl")):
        assert owner.poll() is None, owner.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = start(arguments, tmp_path)
    assert second.stdout is not None
    heard = []
    for line in second.stdout:
        heard.append(line)
        if "another run is making" in line:
            break
    assert owner.poll() is None, "the first is still at work"
    owner.send_signal(signal.SIGKILL)
    heard += [second.communicate(timeout=400)[0]]
    owner.wait()
    assert second.returncode == 0, "".join(heard)
    assert "sequences are there already" in heard[-1], "what the first had made is kept"
    (folder,) = (place / "artifacts" / "extract").glob("*/*")
    assert json.loads((folder / "manifest.json").read_text())["complete"]
    assert len(HiddenStates(folder)) == 200
    assert not leftovers(place)
