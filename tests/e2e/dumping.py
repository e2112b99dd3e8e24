"""What the tests of the dump share: prompts of all lengths through a real server with the plugin, and their checks."""

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.e2e.models import VOCAB, build
from tests.e2e.placing import Placed, place
from torch import Tensor
from transformers import PreTrainedModel

from eagle3.config.schema import Config, DatasetConfig, ServerConfig, ServerFlags, TargetConfig
from eagle3.data.ranks import Ranks
from eagle3.server.client import Client
from eagle3.server.flags import RESERVED_TOKENS, server_command
from eagle3.server.launch import Server

CHUNK, CONTEXT = 256, 2048
WHOLE = [1, 2, 17, CHUNK - 1, CHUNK]
"""Lengths of the prompts that are sent one by one: each is computed in one pass."""
CHUNKED = [5, 33, CHUNK - 1, CHUNK, CHUNK + 1, 300, 900, CONTEXT - RESERVED_TOKENS]
"""Lengths of those that are sent all at once: computed in chunks, each of parts of several prompts."""
LENGTHS = [*WHOLE, *CHUNKED]
FIRST = 100
SAMPLES = [FIRST + n for n in range(len(LENGTHS))]
IDS = [*(f"{length}-tokens-whole" for length in WHOLE), *(f"{length}-tokens-chunked" for length in CHUNKED)]
every_length = pytest.mark.parametrize("sample", SAMPLES, ids=IDS)


@dataclass
class Served:
    server: Server
    placed: Placed
    model: PreTrainedModel
    boundaries: list[int]
    logprobs: dict[int, list[float]]
    log: Path


def on_cpu(ranks: int = 1, **common: Any) -> ServerConfig:
    """With attention groups SGLang divides the size of a chunk by their number."""
    flags = ServerFlags(common=common, extraction={"chunked_prefill_size": CHUNK * common.get("attn_dp_size", 1)})
    return ServerConfig(device="cpu", tp=ranks, flags=flags, env={"OMP_NUM_THREADS": "1"})


def config(model: Path, server: ServerConfig | None = None) -> Config:
    return Config(
        name="test",
        target=TargetConfig(name="tiny", path=str(model)),
        dataset=DatasetConfig(name="none", path="none"),
        server=server or on_cpu(),
    )


def prompts() -> dict[int, list[int]]:
    chance = random.Random(0)
    return {
        sample: [chance.randrange(3, VOCAB) for _ in range(length)]
        for sample, length in zip(SAMPLES, LENGTHS, strict=True)
    }


def serve(
    make: Callable[[], Any], boundaries: list[int], root: Path, server_config: ServerConfig | None = None
) -> Iterator[Served]:
    """A server that has been sent everything: the prompts, one of them twice, and another client's requests."""
    model = build(make(), root / "model")
    placed = place(root / "data", prompts(), boundaries, 64, shards=3)
    cfg = config(root / "model", server_config)
    command = server_command(cfg, "extraction", root / "model", dump=placed.work)
    log = root / "server.log"
    with Server.start(command, log=log, timeout_s=900, work=placed.work) as server:
        logprobs = asyncio.run(_send(server, placed))
        yield Served(server, placed, model, boundaries, logprobs, log)
        members = server.tree.members()
    assert not any(process.is_running() for process in members), "stopping left something behind"


async def _send(server: Server, placed: Placed) -> dict[int, list[float]]:
    logprobs: dict[int, list[float]] = {}
    ranks = Ranks(len(server.ready), server.command.sglang_version)
    async with Client(server.url, concurrency=16) as client:

        async def with_logprobs(sample: int) -> None:
            ids = placed.sequences[sample]
            logprobs[sample] = await client.prompt_logprobs(ids, placed.rid(sample), ranks.begin([sample], len(ids)))

        async def prefill(sample: int) -> None:
            ids = placed.sequences[sample]
            await client.prefill([ids], [placed.rid(sample)], ranks.begin([sample], len(ids)))

        alone, together = SAMPLES[: len(WHOLE)], SAMPLES[len(WHOLE) :]
        for sample in alone:
            await prefill(sample)
        jobs: list[tuple[int, Callable[[], Any]]] = [(sample, partial(prefill, sample)) for sample in together[:-2]]
        jobs += [(sample, partial(with_logprobs, sample)) for sample in together[-2:]]
        jobs += [(-1, partial(client.prefill, [placed.sequences[alone[0]]], [f"eagle3-somebodyelse-{alone[0]}"]))]
        jobs += [(-2, partial(client.complete, placed.sequences[alone[2]], 3))]
        async for _ in client.run(jobs):
            pass
        await prefill(alone[0])  # once more: is not written again
    deadline = time.monotonic() + 60  # the status file comes twice a second
    while (status := server.dump_status()).get("sequences") != len(SAMPLES) or status["repeated"] != 1:
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
    return logprobs


def passes(log: Path) -> list[int]:
    """Tokens of each prefill pass, from the server's log."""
    return [int(count) for count in re.findall(r"Prefill batch.*?#new-token: (\d+)", log.read_text())]


def row_errors(got: Tensor, wanted: Tensor) -> Tensor:
    """Relative error of each row, [L]."""
    return (got.float() - wanted.float()).norm(dim=-1) / wanted.float().norm(dim=-1)


@torch.no_grad()
def require_states_of_transformers(
    model: PreTrainedModel, boundaries: list[int], input_ids: list[int], stored: dict[str, Tensor]
) -> None:
    """At the boundaries that were asked for and no others; `final` after the norm.

    Args:
        stored: `boundary.<b>` and `final`, each `[L, H]`.
    """
    states = [state[0] for state in model(torch.tensor([input_ids]), output_hidden_states=True).hidden_states]
    # bf16 noise turns a router's choice of an expert now and then (a tenth to a third of a row), and a sharp softmax
    # rarely: few rows are far. At another boundary every row is: its error is about 1.
    routed = "Deepseek" in type(model).__name__
    positions = {f"boundary.{b}": b for b in boundaries} | {"final": len(states) - 1}
    assert list(stored) == list(positions)
    for name, position in positions.items():
        errors = row_errors(stored[name], states[position])
        assert errors.median() < (0.15 if routed else 0.03), f"{name}: median error {errors.median():.3f}"
        near = (errors < (0.5 if routed else 0.05)).float().mean()
        assert near >= (0.8 if routed else 0.9), f"{name}: only {near:.0%} of the rows are near"
        for other in (position - 1, position + 1):
            if 0 <= other < len(states) - 1:
                assert row_errors(stored[name], states[other]).median() > 0.2, f"{name} looks like boundary {other}"


class DumpTests:
    """The same for each model; needs a module's fixture `served`."""

    @every_length
    def test_states_are_those_of_transformers(self, served: Served, sample: int) -> None:
        """Computed whole and in chunks, from one token to the context's limit."""
        sequence = served.placed.sequences[sample]
        require_states_of_transformers(served.model, served.boundaries, sequence, served.placed.read(sample))

    def test_prompts_were_computed_whole_and_in_chunks(self, served: Served) -> None:
        counts = passes(served.log)
        assert counts[: len(WHOLE)] == WHOLE
        # The rest, another client's two, and one prompt again: full chunks, and a few that were sent too early or late.
        chunks = counts[len(WHOLE) :]
        assert sum(chunks) == sum(CHUNKED) + WHOLE[0] + WHOLE[2] + WHOLE[0]
        assert max(chunks) == CHUNK
        assert chunks.count(CHUNK) >= sum(CHUNKED) // CHUNK - len(CHUNKED)

    def test_what_the_server_has_loaded_is_left_out_of_garbage_collection(self, served: Served) -> None:
        """A collection goes through a million objects for half a second, every 3,000 requests."""
        assert '"POST /freeze_gc HTTP/1.1" 200' in served.log.read_text()

    def test_the_plugin_reports_what_it_captures(self, served: Served) -> None:
        (ready,) = served.server.ready
        assert ready["boundaries"] == served.boundaries
        assert (ready["rank"], ready["streams"], ready["hidden_size"]) == (0, 1, 64)
        # And has seen at the layers themselves, in the first 16 passes.
        assert served.server.dump_status()["boundaries_compared"] == 16 * len(served.boundaries)

    def test_every_sequence_is_committed_once_and_nobody_else_s(self, served: Served) -> None:
        status = served.server.dump_status()
        assert status["error"] is None
        assert status["sequences"] == len(LENGTHS)
        assert status["tokens"] == sum(LENGTHS)
        assert status["bytes"] == sum(LENGTHS) * 64 * 2 * len(served.placed.states)
        assert status["repeated"] == 1
        assert status["bad"] == 0
        lines = [line for path in served.placed.work.glob("ledger-*.jsonl") for line in path.read_text().splitlines()]
        assert sorted(json.loads(line)["id"] for line in lines) == SAMPLES

    @torch.no_grad()
    def test_logits_of_the_final_state_are_the_server_s_own(self, served: Served) -> None:
        """`final` is after the last norm: no norm stands between it and the head."""
        head = served.model.get_output_embeddings().weight
        assert len(served.logprobs) == 2
        for sample, logprobs in served.logprobs.items():
            logits = served.placed.read(sample)["final"].float() @ head.float().T
            ids = torch.tensor(served.placed.sequences[sample])
            ours = logits.log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]
            assert (ours - torch.tensor(logprobs)).abs().max() < 0.1
