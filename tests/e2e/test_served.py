"""`evaluate=served` and `evaluate=chain` of one trained drafter: SGLang's own EAGLE3 workers, on a CPU.

Only the compiled kernels below them are not SGLang's: `speculating/` says how. In float32 nothing is decided by
rounding, so chain and server must count the same, answer by answer.
"""

import asyncio
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.e2e.chat_model import write_tokenizer
from tests.e2e.models import build, tiny_llama
from tests.evaluation.tiny_pair import BOUNDARIES, make_pair

from eagle3.config.schema import (
    Config,
    DatasetConfig,
    EvaluateConfig,
    ServerConfig,
    ServerFlags,
    TargetConfig,
    TrainerConfig,
)
from eagle3.data.tokenize import ConversationTokenizer
from eagle3.drafter.export import export_drafter
from eagle3.drafter.load import load_drafter
from eagle3.errors import ServerError
from eagle3.evaluation import served
from eagle3.evaluation.agreement import agreement
from eagle3.evaluation.chain_run import run_chains
from eagle3.evaluation.figures import NONE, UNTRAINED
from eagle3.evaluation.load import Load, alive
from eagle3.evaluation.recorded import LOADS
from eagle3.evaluation.sameness import Difference, explain
from eagle3.evaluation.sequences import Sequences, accept_length
from eagle3.evaluation.servers import Servers, require_captured
from eagle3.files.json_lines import rows_of
from eagle3.metrics import JsonlReporter
from eagle3.server.client import Client
from eagle3.server.flags import ServerCommand
from eagle3.target.info import read_info
from eagle3.training.machine import Machine

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
SETTING = "s3k1d4"
FAKES = Path(__file__).parent / "speculating"
KEPT = 5
TORN = '{"server": "s3k1d4", "round": 1, "tem'
"""What kill -9 may leave."""
WORDS = ("barn", "dust", "fill", "gost", "lan", "mest", "norn", "pill")


def config(folder: Path, **evaluate: Any) -> Config:
    return Config(
        name="tiny",
        target=TargetConfig("tiny", str(folder / "model")),
        dataset=DatasetConfig("none", "none.jsonl"),
        server=ServerConfig(
            device="cpu",
            dtype="float32",
            flags=ServerFlags(common={"max_total_tokens": 4096, "mem_fraction_static": 0.9}),
        ),
        trainer=TrainerConfig(accelerator="cpu", precision="fp32"),
        evaluate=EvaluateConfig(
            prompts=[str(folder / "asked.jsonl")],
            concurrency=[1, 4],
            temperatures=[0.0],
            rounds=2,
            max_new_tokens=40,
            beside=True,
            **evaluate,
        ),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model/, a drafter/ that knows its answers, asked.jsonl; and what both evaluations left: served/, chain/."""
    folder = tmp_path_factory.mktemp("served")
    build(tiny_llama(), folder / "model")
    write_tokenizer(folder / "model")
    rows = [{"id": word, "prompt": f"say {word} {n} times"} for n, word in enumerate(WORDS, 1)]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    info, cfg = read_info(folder / "model"), config(folder)
    tokenizer = ConversationTokenizer(info, cfg.target)
    prompts = [tokenizer.prompt_ids([{"role": "user", "content": row["prompt"]}]) for row in rows]
    pair = make_pair(folder / "model", prompts)
    export_drafter(pair.drafter, pair.draft_ids, BOUNDARIES, info, folder / "drafter", "0.5.23")
    (folder / "chain").mkdir()
    chained = dataclasses.replace(cfg, evaluate=dataclasses.replace(cfg.evaluate, kind="chain", untrained=False))
    said = JsonlReporter(folder / "chain" / "metrics.jsonl")
    run_chains(chained, info, folder / "drafter", None, folder / "chain", Machine.of(cfg.trainer, devices=1), said)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served, "served_command", speculating(served.served_command))
        patch.setattr(served, "compare", asking_more(served.compare))
        patch.setenv("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than this test
        (folder / "served").mkdir()
        said, logs = folder / "served" / "metrics.jsonl", folder / "logs"
        with pytest.raises(KeyboardInterrupt):
            served.run_served(cfg, info, folder / "drafter", None, folder / "served", Interrupting(said), logs)
        with (folder / "served" / LOADS).open("a") as file:
            file.write(TORN)
        served.run_served(cfg, info, folder / "drafter", None, folder / "served", JsonlReporter(said), logs)
    return folder


class Interrupting(JsonlReporter):
    """Ctrl-C in the second round, when the first load without speculation is recorded."""

    def progress(self, done: float, total: float, **fields: Any) -> None:
        super().progress(done, total, **fields)
        if done == KEPT:
            raise KeyboardInterrupt


def speculating(original: Any) -> Any:
    def command(*args: Any, **kwargs: Any) -> ServerCommand:
        made: ServerCommand = original(*args, **kwargs)
        path = f"{FAKES}:{made.added_env['PYTHONPATH']}"
        return dataclasses.replace(made, added_env={**made.added_env, "PYTHONPATH": path})

    return command


def asking_more(original: Any) -> Any:
    """While the servers are up: the target finds its own token the likelier one, by as much as it is; one that has
    nothing to do leaves the cores to the others.
    """

    def compare(cfg: Config, servers: Servers, sets: Any, loads: list[Load]) -> Any:
        assert cores(servers.use(SETTING).tree.members()) < 0.5, "without sleep_on_idle it is a whole one"
        own = loads[0]
        made_up = Difference(SETTING, own.replies[0].set, own.replies[0].key, 3, own.replies[0].output_ids[3], 7)
        server = servers.use(NONE)

        async def ask() -> None:
            async with Client(server.url, 1) as client:
                (one,) = await alive(server, explain(client, [made_up], own, sets.prompts))
            assert one.gap is not None
            assert one.gap > 0

        asyncio.run(ask())
        return original(cfg, servers, sets, loads)

    return compare


def cores(processes: list[psutil.Process]) -> float:
    """How many they keep busy."""

    def seconds() -> float:
        return sum(process.cpu_times().user + process.cpu_times().system for process in processes)

    before, began = seconds(), time.monotonic()
    time.sleep(3)
    return (seconds() - before) / (time.monotonic() - began)


def loads_of(made: Path) -> list[Load]:
    return [Load.of(row) for row in rows_of(made / "served" / LOADS)]


def test_chain_and_server_count_the_same(made: Path) -> None:
    found = agreement(made / "served", made / "chain", SETTING)
    assert found.prompts == len(WORDS)
    assert found.same_passes == len(WORDS)
    assert found.served > 2, "there is something to measure"
    assert found.chain == found.served
    rows = {row["key"]: row for row in map(json.loads, (made / "chain" / "chains.jsonl").read_text().splitlines())}
    (load,) = [one for one in loads_of(made) if (one.server, one.round, one.concurrency) == (SETTING, 0, 1)]
    for reply in load.replies:
        counts = [round_["accepted"] for round_ in rows[reply.key]["rounds"]]
        assert [counts.count(k) for k in range(len(reply.histogram))] == reply.histogram, reply.key
        assert reply.passes == len(counts)


def test_a_chain_that_follows_the_served_answers_counts_the_same(made: Path, tmp_path: Path) -> None:
    cfg = config(made, kind="chain", untrained=False, follow=str(made / "served"))
    said = JsonlReporter(tmp_path / "metrics.jsonl")
    machine = Machine.of(cfg.trainer, devices=1)
    found = run_chains(cfg, read_info(made / "model"), made / "drafter", None, tmp_path, machine, said)
    assert found["eval/followed/same_passes"] == len(WORDS)
    assert found["eval/followed/chain_over_served"] == 1


def test_rounds_in_turn_and_what_is_said_of_them(made: Path) -> None:
    done = [(load.round, load.server, load.concurrency) for load in loads_of(made)]
    first, second = ([(round_, name, n) for n in (1, 4) for name in (NONE, SETTING)] for round_ in (0, 1))
    # What is left of the second round is compared with a server of its own start.
    assert done == [*first, second[0], *second, (0, UNTRAINED, 4)]
    summary = json.loads((made / "served" / "summary.json").read_text())
    assert summary["serve/best"] == SETTING
    assert summary["serve/speedup_min"] <= summary["serve/speedup"] <= summary["serve/speedup_max"]
    assert summary["serve/break_even"] == pytest.approx(summary["eval/accept_length"] / summary["serve/speedup"])
    assert 0 <= summary["eval/accept_length_spread"] < 1
    counts = Sequences.read(made / "served")
    assert counts is not None
    assert float(accept_length(counts.conditional)) == pytest.approx(summary["eval/accept_length"])
    assert summary["eval/greedy_differences"] == summary["eval/greedy_differences_without"] == 0
    assert {"eval/cond_acc_step_2", "serve/none/t0/c4/latency_p99_s", "eval/asked/accept_length"} <= summary.keys()
    page = (made / "served" / "served.md").read_text()
    first = "**Slower than no speculation: " if summary["serve/speedup"] < 1 else f"**{summary['serve/speedup']:.2f}x"
    assert page.startswith(first)
    assert f"Greedy answers equal those without speculation, all {len(WORDS)} of every setting" in page


def test_what_was_measured_before_a_stop_is_kept(made: Path) -> None:
    rows = [json.loads(line) for line in (made / "served" / "metrics.jsonl").read_text().splitlines()]
    notes = [row["note"] for row in rows if "note" in row]
    told = "5 of 9 loads were measured before; 1 of them, without speculation, again for the rest of their round"
    assert notes.count(told) == 1
    progress = [(row["progress"]["done"], row["progress"]["total"]) for row in rows if "progress" in row]
    assert progress == [*((n, 9) for n in range(1, KEPT + 1)), *((n, 10) for n in range(KEPT + 1, 11))]
    summary = json.loads((made / "served" / "summary.json").read_text())
    assert summary["eval/loads_kept"] == KEPT
    assert summary["eval/seconds"] > sum(load.seconds for load in loads_of(made))
    assert "stopped after 5 loads and continued" in (made / "served" / "served.md").read_text()


def test_random_weights_gain_nothing(made: Path) -> None:
    summary = json.loads((made / "served" / "summary.json").read_text())
    assert summary["eval/untrained/accept_length"] < 1.1
    loaded = load_drafter(made / "served" / UNTRAINED)
    assert loaded.boundaries == BOUNDARIES
    assert not torch.equal(loaded.drafter.norm.weight, load_drafter(made / "drafter").drafter.norm.weight)


def test_what_is_captured_is_read_back(made: Path) -> None:
    capture = made / "served" / "capture"
    require_captured(capture / SETTING, BOUNDARIES, SETTING)
    require_captured(capture / UNTRAINED, BOUNDARIES, UNTRAINED)
    require_captured(capture / NONE, [], NONE)
    with pytest.raises(ServerError, match=r"captures boundaries \[2, 3, 5\]"):
        require_captured(capture / SETTING, [1, 2, 4], SETTING)
