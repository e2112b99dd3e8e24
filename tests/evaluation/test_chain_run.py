"""`evaluate=chain` from a job: prepared conversations, shipped prompts, a drafter of ours and one of others."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.drafter.foreign import as_others
from tests.e2e.chat_model import write_chat_model, write_conversations
from tests.training.made import config_of

from eagle3.config import load
from eagle3.data.prepare import run_prepare
from eagle3.drafter.export import export_drafter
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import Eagle3Error
from eagle3.evaluation.chain import run_chain
from eagle3.evaluation.load import Load, Reply
from eagle3.evaluation.main import main
from eagle3.evaluation.open import checked
from eagle3.evaluation.prompts import load_prompts
from eagle3.evaluation.sequences import Sequences, accept_length
from eagle3.evaluation.trained_on import Asked, key_of, trained_on, weights_sha256
from eagle3.files.json_file import write_json
from eagle3.files.json_lines import sealed, unsealed
from eagle3.metrics import JsonlReporter
from eagle3.target.info import read_info

BOUNDARIES = [2, 3, 4]
"""What SGLang takes for a 7-layer target; of 6 layers, some that are named."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model/, prompts/ (prepared), drafter/."""
    folder = tmp_path_factory.mktemp("chain")
    write_chat_model(folder / "model")
    write_conversations(folder / "talks.jsonl", 30)
    cfg = load(config(folder))
    info = read_info(folder / "model")
    (folder / "prompts").mkdir()
    run_prepare(cfg, info, folder / "prompts", JsonlReporter(folder / "prepare.jsonl"), folder / "logs")
    shape = DrafterShape.build(cfg.drafter, info, len(BOUNDARIES))
    export_drafter(Drafter(shape), torch.arange(32), BOUNDARIES, info, folder / "drafter", "0.5.23")
    return folder


def config(folder: Path, **evaluate: Any) -> dict[str, Any]:
    return config_of(
        target={"name": "tiny", "path": str(folder / "model")},
        dataset={"name": "talks", "path": str(folder / "talks.jsonl"), "held_out": 0.3},
        layers={"boundaries": BOUNDARIES},
        server={"device": "cpu"},
        evaluate={"kind": "chain", "prompts": ["held_out", "code"], "limit": 3, "max_new_tokens": 12, **evaluate},
    )


def evaluate(folder: Path, out: str, measured: Path, **changes: Any) -> dict[str, Any]:
    (folder / out).mkdir(exist_ok=True)
    job = {
        "config": config(folder, **changes),
        "dataset": str(folder / "no-states"),
        "prompts": str(folder / "prompts"),
        "target": str(folder / "model"),
        "text_prefix": "",
        "boundaries": BOUNDARIES,
        "out": str(folder / out),
        "drafter": str(measured),
    }
    (folder / out / "job.json").write_text(json.dumps(job))
    assert main([str(folder / out / "job.json")]) == 0
    return json.loads((folder / out / "summary.json").read_text())


def test_ours(made: Path) -> None:
    found = evaluate(made, "ours", made / "drafter", drafts=[{"steps": 2, "topk": 1, "tokens": 3}])
    assert found["eval/kind"] == "chain"
    assert found["eval/sequences"] == 6
    assert found["eval/accept_length"] == pytest.approx(1, abs=0.5), "it is random"
    assert {"eval/held_out/accept_length", "eval/code/accept_length", "eval/untrained/accept_length"} <= found.keys()
    assert {"eval/cond_acc_step_0", "eval/cond_acc_step_1"} <= found.keys()
    rows = [json.loads(line) for line in (made / "ours" / "chains.jsonl").read_text().splitlines()]
    assert [row["set"] for row in rows] == ["held_out"] * 3 + ["code"] * 3
    assert all(len(row["output_ids"]) <= 12 for row in rows)
    assert all(len(round_["drafts"]) == 2 for row in rows for round_ in row["rounds"])

    # Its spread: of the same figure over answers drawn anew, here by plain sums over the journal.
    counts = Sequences.read(made / "ours")
    assert counts is not None
    assert float(accept_length(counts.conditional)) == pytest.approx(found["eval/accept_length"])
    sums = np.array([[len(row["rounds"]), sum(r["accepted"] for r in row["rounds"])] for row in rows])
    draws = sums[np.random.default_rng(1).integers(0, 6, (20000, 6))].sum(1)
    assert found["eval/accept_length_spread"] == pytest.approx((draws[:, 1] / draws[:, 0]).std(), rel=0.1, abs=1e-9)
    assert len(set(counts.ids.tolist())) == 6


def as_served(rows: list[dict[str, Any]]) -> bytes:
    """A line of loads.jsonl, made up of what a chain counted: its answers and passes, as a server would report them."""
    replies = []
    for row in rows:
        counts = [round_["accepted"] for round_ in row["rounds"]]
        histogram = [counts.count(k) for k in range(max(counts, default=0) + 1)]
        replies.append(Reply(row["set"], row["key"], row["asked"], row["output_ids"], 1.0, len(counts), histogram))
    return sealed(dataclasses.asdict(Load("s2k1d3", 0, 0.0, 1, 6.0, replies)))


def test_served_answers_are_followed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Token for token, also where the target would have said something else."""
    drafts = [{"steps": 2, "topk": 1, "tokens": 3}]
    evaluate(made, "free", made / "drafter", drafts=drafts, untrained=False)
    rows = [json.loads(line) for line in (made / "free" / "chains.jsonl").read_text().splitlines()]
    served = made / "served"
    served.mkdir()
    (served / "loads.jsonl").write_bytes(as_served(rows))
    follow: dict[str, Any] = {"drafts": drafts, "untrained": False, "follow": str(served)}
    found = evaluate(made, "same", made / "drafter", **follow)
    assert (found["eval/followed/same_passes"], found["eval/followed/chain_over_served"]) == (6, 1.0)
    assert found["eval/followed/served_accept_length"] == found["eval/accept_length"]
    again = [json.loads(line) for line in (made / "same" / "chains.jsonl").read_text().splitlines()]
    assert [(row["output_ids"], row["rounds"]) for row in again] == [(row["output_ids"], row["rounds"]) for row in rows]

    # Another answer is another measurement, in the same folder too.
    other = [token + 1 if i == 4 else token for i, token in enumerate(rows[0]["output_ids"])]
    (served / "loads.jsonl").write_bytes(as_served([rows[0] | {"output_ids": other}, *rows[1:]]))
    evaluate(made, "same", made / "drafter", **follow)
    again = [json.loads(line) for line in (made / "same" / "chains.jsonl").read_text().splitlines()]
    assert [row["output_ids"] for row in again if row["key"] == rows[0]["key"]] == [other]

    # What is no answer of this target to this prompt is not followed.
    others: list[Any] = [(rows[:-1], {}, "has no answer to code/code-02, token for token (1 of 6 prompts); give eval")]
    others += [([*rows[:-1], rows[-1] | {"asked": "0"}], {}, "has no answer to code/code-02, token for token (1 of 6")]
    others += [(rows, {"max_new_tokens": 11}, "has answers of 12 tokens: give evaluate.max_new_tokens=12")]
    others += [([rows[0] | {"output_ids": [10**6]}, *rows[1:]], {}, "has answers of another target: token 1000000 of")]
    for replies, changed, says in others:
        (served / "loads.jsonl").write_bytes(as_served(replies))
        with pytest.raises(AssertionError):
            evaluate(made, "lacking", made / "drafter", **follow | changed)
        assert says in capsys.readouterr().err

    # Of another drafter it is said, and measured all the same: an export has other files.
    (served / "loads.jsonl").write_bytes(as_served(rows))
    write_json(served / "summary.json", {"eval/drafter_weights": weights_sha256(made / "drafter")})
    evaluate(made, "of-its-own", made / "drafter", **follow)
    write_json(served / "summary.json", {"eval/drafter_weights": "0"})
    evaluate(made, "of-another", made / "drafter", **follow)
    said = [(made / out / "metrics.jsonl").read_text() for out in ("of-its-own", "of-another")]
    assert ["was served with other weights than those of" in text for text in said] == [False, True]


def test_one_that_was_made_by_others(made: Path) -> None:
    folder = made / "theirs"
    shape = DrafterShape.build(load(config(made)).drafter, read_info(made / "model"), len(BOUNDARIES))
    export_drafter(Drafter(shape), torch.arange(32), BOUNDARIES, read_info(made / "model"), folder, "0.5.23")
    as_others(folder)
    found = evaluate(made, "eval-theirs", folder, drafter=str(folder))
    assert found["eval/rounds"] > 0
    assert "eval/untrained/accept_length" not in found


def test_a_killed_one_goes_on(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is on the disk, with half a line at its end, as kill -9 leaves it; no prompt is asked twice."""
    whole = evaluate(made, "undisturbed", made / "drafter")
    lines = (made / "undisturbed" / "chains.jsonl").read_bytes().splitlines(keepends=True)
    (made / "killed").mkdir()
    (made / "killed" / "chains.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:40])
    asked: list[list[int]] = []

    def counted(*arguments: Any) -> Any:
        asked.append(arguments[2])
        return run_chain(*arguments)

    monkeypatch.setattr("eagle3.evaluation.chain_run.run_chain", counted)
    found = evaluate(made, "killed", made / "drafter")
    assert len(asked) == 2 * (6 - 4), "two drafters, two prompts"
    said = map(json.loads, (made / "killed" / "metrics.jsonl").read_text().splitlines())
    done = [row["progress"]["done"] for row in said if "progress" in row]
    assert done == [4, 5, 6], "the pace is that of new answers"
    assert {**found, "eval/seconds": 0} == {**whole, "eval/seconds": 0}
    rows = [json.loads(line) for line in (made / "killed" / "chains.jsonl").read_text().splitlines()]
    assert [without_time(row) for row in rows] == [without_time(json.loads(line)) for line in lines]

    # Answers of another measurement, or to another prompt, are none of this one.
    asked.clear()
    evaluate(made, "killed", made / "drafter", max_new_tokens=11)
    assert len(asked) == 12
    row = unsealed(lines[0])
    assert row is not None
    changed = [sealed(row | {"asked": "0"}), *lines[1:], lines[1], b"7\n"]
    (made / "killed" / "chains.jsonl").write_bytes(b"".join(changed))
    asked.clear()
    evaluate(made, "killed", made / "drafter")
    assert len(asked) == 2
    assert len((made / "killed" / "chains.jsonl").read_text().splitlines()) == 6

    # A digit that is another by now is seen.
    path = made / "killed" / "chains.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"accepted": 0', b'"accepted": 1', 1))
    asked.clear()
    assert evaluate(made, "killed", made / "drafter")["eval/accept_length"] == whole["eval/accept_length"]
    assert len(asked) == 2


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("seconds", "crc")}


def test_the_drafter_of_another_model_is_refused(made: Path) -> None:
    shutil.copytree(made / "drafter", made / "strange")
    config = json.loads((made / "strange" / "config.json").read_text())
    config["eagle3"]["target"]["fingerprint"] = "0" * 64
    (made / "strange" / "config.json").write_text(json.dumps(config))
    info = read_info(made / "model")
    with pytest.raises(Eagle3Error, match="strange was trained for another model"):
        checked(made / "strange", info, None)
    checked(made / "drafter", info, None)


def split(made: Path, seed: int) -> Path:
    """The same conversations, held out otherwise."""
    folder = made / f"prompts-{seed}"
    if not folder.is_dir():
        folder.mkdir()
        cfg = load(config(made))
        cfg.dataset.seed = seed
        run_prepare(cfg, read_info(made / "model"), folder, JsonlReporter(made / "other.jsonl"), made / "logs")
    return folder


def carrying(made: Path, name: str, prepare: str | None) -> Path:
    """The drafter with the provenance of a run whose prepare had that folder."""
    folder = made / name
    shutil.copytree(made / "drafter", folder)
    if prepare is not None:
        (folder / "provenance.json").write_text(json.dumps({"artifacts": {"prepare": prepare}}))
    return folder


def test_held_out_of_another_split_is_not_asked_where_it_was_trained_on(made: Path, tmp_path: Path) -> None:
    other = split(made, 5)
    theirs, ours = Asked.of(other), Asked.of(made / "prompts")
    held_out = {key_of(ids) for ids in ours.held_out.values()}
    assert held_out & theirs.trained, "else there is nothing to see"
    drafter = carrying(made, "of-another-split", str(other))
    reporter = JsonlReporter(tmp_path / "said.jsonl")
    cfg = load(config(made, prompts=["held_out", "code"], drafter=str(drafter), limit=100))
    sets = load_prompts(cfg, read_info(made / "model"), made / "prompts", reporter)
    asked = {key_of(prompt.input_ids) for prompt in sets.prompts if prompt.set == "held_out"}
    assert asked == held_out - theirs.trained
    assert sets.trained_on == len([ids for ids in ours.held_out.values() if key_of(ids) in theirs.trained])
    assert sets.training_known


@pytest.mark.parametrize("prepare", [None, "/gone/0123456789abcdef"])
def test_where_it_is_not_known_that_is_said(made: Path, tmp_path: Path, prepare: str | None) -> None:
    drafter = carrying(made, f"unknown-{prepare is None}", prepare)
    reporter = JsonlReporter(tmp_path / "said.jsonl")
    cfg = load(config(made, drafter=str(drafter)))
    sets = load_prompts(cfg, read_info(made / "model"), made / "prompts", reporter)
    assert not sets.training_known
    assert sets.trained_on == 0
    assert "what the drafter was trained on is not known" in (tmp_path / "said.jsonl").read_text()


def test_what_it_was_trained_on_is_found_beside_where_it_has_moved(made: Path, tmp_path: Path) -> None:
    (tmp_path / "0123456789abcdef").symlink_to(split(made, 5))
    (tmp_path / "fedcba9876543210").symlink_to(made / "prompts")
    drafter = carrying(made, "moved", "/gone/0123456789abcdef")
    assert trained_on(str(drafter), tmp_path / "fedcba9876543210").folder == tmp_path / "0123456789abcdef"


def test_what_is_too_long_is_counted(made: Path, tmp_path: Path) -> None:
    asked = tmp_path / "mine.jsonl"
    asked.write_text("".join(json.dumps({"prompt": "word " * count}) + "\n" for count in (1, 5000)))
    reporter = JsonlReporter(tmp_path / "said.jsonl")
    cfg = load(config(made, prompts=[str(asked)]))
    sets = load_prompts(cfg, read_info(made / "model"), made / "prompts", reporter)
    assert len(sets.prompts) == 1
    assert sets.unasked_figures() == {"eval/too_long": 1}
    assert "mine.jsonl: 1 prompt left out: too long for the target's context" in (tmp_path / "said.jsonl").read_text()
    cfg = load(config(made))
    assert load_prompts(cfg, read_info(made / "model"), made / "prompts", reporter).unasked_figures() == {}


def test_nothing_is_asked_that_was_trained_on(made: Path, tmp_path: Path) -> None:
    talks = [json.loads(line)["messages"] for line in (made / "talks.jsonl").read_text().splitlines()]
    asked = tmp_path / "mine.jsonl"
    asked.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in talks if len(messages) == 2))
    cfg = load(config(made, prompts=["held_out", str(asked)], limit=100))
    reporter = JsonlReporter(tmp_path / "said.jsonl")
    sets = load_prompts(cfg, read_info(made / "model"), made / "prompts", reporter)
    held_out = {tuple(p.input_ids) for p in sets.prompts if p.set == "held_out"}
    mine = {tuple(p.input_ids) for p in sets.prompts if p.set == "mine"}
    assert sets.trained_on > 0
    assert mine
    assert mine <= held_out
