"""What 8 bits lose is measured on the proof's rows; the proof itself stays as strict, on what the server computed."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.data.small_datasets import prompts_of
from torch import Tensor

from eagle3.data.layout import StateShape, state_names
from eagle3.data.manifest import quantisation_text
from eagle3.data.placement import place
from eagle3.data.proving import Proving
from eagle3.data.quantisation import QuantisationError, as_stored
from eagle3.data.skeleton import PARTIAL
from eagle3.data.writer import write_dataset
from eagle3.errors import ProofError

H, V = 64, 90
SHAPE = StateShape(tuple(state_names([1, 3])), H, "fp8_e4m3")
LENGTHS = [12, 40, 9, 33, 25]


def states_of(length: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(length, H, generator=generator).bfloat16() for name in SHAPE.states}


def head() -> Tensor:
    return (torch.randn(V, H, generator=torch.Generator().manual_seed(5)) * 0.3).bfloat16()


def test_the_figures_are_those_of_their_definitions(monkeypatch):
    monkeypatch.setattr("eagle3.data.quantisation.ROWS", 7)
    monkeypatch.setattr("eagle3.data.quantisation.HEAD_BLOCK", 31)
    measured = QuantisationError(head())
    both = [states_of(30, 1), states_of(45, 2)]
    both[0]["boundary.1"][3] = 0
    for states in both:
        measured.add("here", states)
    record = measured.record()
    assert (record["sequences"], record["tokens"], record["positions"]) == (2, 75, 75)
    for name in SHAPE.states:
        rows = torch.cat([states[name] for states in both])
        error = (as_stored(rows).double() - rows.double()).norm(dim=-1)
        assert record["relative_rms"][name] == pytest.approx(float(error.norm() / rows.double().norm()))
        assert record["max_relative_row"][name] == pytest.approx(
            float((error / rows.double().norm(dim=-1)).nan_to_num().max())
        )
        assert 0.01 < record["relative_rms"][name] < record["max_relative_row"][name] < 0.05
    final = torch.cat([states["final"] for states in both])
    p, q = ((rows.float() @ head().float().T).log_softmax(-1) for rows in (final, as_stored(final)))
    assert record["kl_divergence"] == pytest.approx(float((p.exp() * (p - q)).sum() / 75), rel=1e-3)
    assert record["top1_agreement"] == pytest.approx(float((p.argmax(-1) == q.argmax(-1)).float().mean()))
    text = quantisation_text(record)
    assert "\n" not in text
    assert f"final {record['relative_rms']['final']:.2%}" in text
    assert f"top-1 the same at {record['top1_agreement']:.1%} of 75 positions" in text


def test_nothing_was_measured():
    assert QuantisationError(head()).record() == {}


def test_states_that_8_bits_are_too_few_for_are_refused():
    """What rows share is a thousand times what tells them apart: 6% of it, rounding's worst, is sixty times that."""
    states = states_of(40, 1)
    states["boundary.3"] = (states["boundary.3"].float() + 1000 + 50 * torch.arange(H)).bfloat16()
    with pytest.raises(ProofError, match=r"here, boundary\.3: 8 bits are too few.*dataset\.dtype=bfloat16"):
        QuantisationError(head()).add("here", states)


def a_proof(folder: Path, wrong: str | None = None) -> tuple[Proving, list[str]]:
    """Both rounds, with a stand-in for server and plugin that writes the rows of a seed for each sequence."""
    prompts = prompts_of(LENGTHS)
    prompts = replace(prompts, input_ids=prompts.input_ids % (V - 2))
    dataset = place(prompts, SHAPE, 1.0, 100)
    seeds = [i + 100 if wrong == "dataset" else i for i in range(len(LENGTHS))]
    write_dataset(folder, prompts, SHAPE, lambda i: states_of(LENGTHS[i], seeds[i]))
    (folder / "work").mkdir()
    proving = Proving(folder, dataset, head(), "seed")
    (plan,) = proving.placement.shards
    assert plan.layout.shape.dtype == "bfloat16"
    proving.create()
    sequences = [*proving.start_set, *proving.start_set, *proving.end_set]

    async def dump(copies: list[int]) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for copy in copies:
            states = states_of(LENGTHS[sequences[copy]], sequences[copy])
            if wrong == "8 bits":
                states["final"] = as_stored(states["final"])
            with (folder / (plan.file + PARTIAL)).open("r+b") as file:
                for name, rows in states.items():
                    file.seek(plan.layout.rows(name, int(proving.placement.row[copy]), len(rows))[0])
                    file.write(rows.view(torch.uint8).numpy().data)
            ids = torch.from_numpy(proving.placement.input_ids(copy)).long()
            final = states_of(LENGTHS[sequences[copy]], sequences[copy])["final"]
            logits = (final.float() @ head().float().T).bfloat16().float()
            found.append(logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0])
        return found

    async def continued(_: list[int], count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(count), torch.zeros(count)

    async def rounds() -> list[str]:
        start = await proving.start(dump, continued)
        end = await proving.end(dump, set())
        return [f"{start.sequences}", f"{end.sequences}"]

    return proving, asyncio.run(rounds())


def test_the_proof_of_a_dataset_in_8_bits_is_on_what_the_server_computed(tmp_path):
    proving, rounds = a_proof(tmp_path)
    assert rounds == ["8", "4"]
    assert proving.quantisation is not None
    record = proving.quantisation.record()
    assert record["sequences"] == 8
    assert record["kl_divergence"] < 0.01
    assert record["top1_agreement"] > 0.9


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [("dataset", "100% of the rows change"), ("8 bits", "differs from the server's own log-probabilities")],
)
def test_rows_that_are_not_the_server_s_are_found(tmp_path, wrong, expected):
    with pytest.raises(ProofError, match=expected):
        a_proof(tmp_path, wrong)
