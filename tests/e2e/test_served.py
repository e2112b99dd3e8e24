"""`evaluate=served` as far as a CPU goes: real servers without speculation, one of them capturing as for a drafter."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.e2e.chat_model import write_chat_model

from eagle3.config.schema import Config, DatasetConfig, EvaluateConfig, ServerConfig, ServerFlags, TargetConfig
from eagle3.drafter.load import LoadedDrafter
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import ServerError
from eagle3.evaluation.figures import NONE, best_of, cells_of
from eagle3.evaluation.load import Load, alive
from eagle3.evaluation.prompts import Prompt, PromptSets
from eagle3.evaluation.sameness import Difference, explain
from eagle3.evaluation.served import LOADS, Servers, compare, measure, require_captured, served_command
from eagle3.metrics import JsonlReporter
from eagle3.server.client import Client
from eagle3.target.info import read_info

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
BOUNDARIES, AGAIN = [2, 3, 5], "again"


STAND_IN = """
def register():
    import sys
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.model_executor.model_runner import ModelRunner
    original = ModelRunner.load_model
    def load_model(runner, *args, **kwargs):
        original(runner, *args, **kwargs)
        runner.model.set_eagle3_layers_to_capture(IDS)
    ModelRunner.load_model = load_model
"""


def write_stand_in(folder: Path) -> Path:
    """In the place of SGLang's speculative worker, which no CPU runs: sets the capture ids as that does."""
    marker = folder / "stand_in-1.dist-info"
    marker.mkdir(parents=True)
    (marker / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in\nVersion: 1\n")
    (marker / "entry_points.txt").write_text("[sglang.srt.plugins]\nstand_in = stand_in:register\n")
    (folder / "stand_in.py").write_text(STAND_IN.replace("IDS", str([b - 1 for b in BOUNDARIES])))
    return folder


def test_two_servers_in_turn(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "model")
    info = read_info(tmp_path / "model")
    cfg = Config(
        name="tiny",
        target=TargetConfig("tiny", str(info.path)),
        dataset=DatasetConfig("none", "none.jsonl"),
        server=ServerConfig(device="cpu", flags=ServerFlags(common={"max_total_tokens": 4096})),
        evaluate=EvaluateConfig(
            kind="served", concurrency=[1, 4], temperatures=[0.0, 1.0], rounds=2, max_new_tokens=12, beside=True
        ),
    )
    capture = {name: tmp_path / "capture" / name for name in (NONE, AGAIN)}
    plain = served_command(cfg, info.path, tmp_path, None, capture[NONE])
    again = served_command(cfg, info.path, tmp_path, None, capture[AGAIN])
    path = f"{again.added_env['PYTHONPATH']}:{write_stand_in(tmp_path / 'stand_in')}"
    again = replace(again, added_env={**again.added_env, "PYTHONPATH": path})
    shape = DrafterShape.build(cfg.drafter.__class__(draft_vocab_size=32), info, 3)
    drafter = LoadedDrafter(Drafter(shape), torch.arange(32), BOUNDARIES, None)
    generator = torch.Generator().manual_seed(0)
    prompts = [Prompt("chat", str(n), torch.randint(3, 500, (n,), generator=generator).tolist()) for n in (3, 9, 20)]
    sets = PromptSets(prompts, [2], 0)
    reporter = JsonlReporter(tmp_path / "said.jsonl")
    servers = Servers(cfg, {NONE: plain, AGAIN: again}, drafter, sets, tmp_path / "logs", reporter)
    with servers.running():
        loads = measure(cfg, servers, sets, tmp_path, reporter)
        explained, noise = compare(cfg, servers, sets, loads)
        _asks_how_likely(servers, sets, loads)
    rows = [Load.of(json.loads(line)) for line in (tmp_path / LOADS).read_text().splitlines()]
    assert rows == loads
    assert [(load.round, load.server) for load in loads[::4]] == [(0, NONE), (0, AGAIN), (1, NONE), (1, AGAIN)]
    assert all(0 < len(reply.output_ids) <= 12 for load in loads for reply in load.replies)
    # The same target twice: the same greedy answers, no drafts, and a speed-up that is noise.
    assert [e for e in explained if not e.is_tie] == []
    cell = best_of(cells_of(loads), 0.0, 1)
    assert cell.accept_length == 1.0
    assert cell.latency_s[50] > 0
    assert noise <= len(prompts)
    # The plugin read back what each captures; other boundaries than the drafter's are an error.
    require_captured(capture[AGAIN], BOUNDARIES, AGAIN)
    with pytest.raises(ServerError, match=r"captures boundaries \[2, 3, 5\]"):
        require_captured(capture[AGAIN], [1, 2, 4], AGAIN)
    with pytest.raises(ServerError, match=r"captures boundaries \[\]"):
        require_captured(capture[NONE], BOUNDARIES, NONE)


def _asks_how_likely(servers: Servers, sets: PromptSets, loads: list[Load]) -> None:
    """The target finds its own token the likelier one, by as much as it is."""
    import asyncio

    server, own = servers.use(NONE), loads[0]
    reply = own.replies[0]
    made_up = Difference(AGAIN, reply.set, reply.key, 3, reply.output_ids[3], 7)

    async def ask() -> None:
        async with Client(server.url, 1) as client:
            (one,) = await alive(server, explain(client, [made_up], own, sets.prompts))
        assert one.gap is not None
        assert one.gap > 0

    asyncio.run(ask())
