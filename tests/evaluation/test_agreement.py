"""A chain against a served evaluation: on the same prompts alone, greedily, with the same drafts."""

import dataclasses
from pathlib import Path

import pytest
from tests.evaluation.recorded_loads import SETTING, asked, loads, reply

from eagle3.errors import DataError
from eagle3.evaluation.agreement import agreement
from eagle3.evaluation.followed import Agreement, greedy_replies
from eagle3.evaluation.load import Load
from eagle3.files.json_lines import sealed


def row(key: str, output_ids: list[int], accepted: list[int], name: str = "chat") -> dict[str, object]:
    rounds = [{"position": i, "drafts": [1, 2, 3], "accepted": count} for i, count in enumerate(accepted)]
    return {"set": name, "key": key, "asked": asked(name, key), "output_ids": output_ids, "rounds": rounds}


def write(folder: Path, served: list[Load], chains: list[dict[str, object]]) -> tuple[Path, Path]:
    for name, rows in (("loads", [dataclasses.asdict(load) for load in served]), ("chains", chains)):
        (folder / f"{name}.jsonl").write_bytes(b"".join(map(sealed, rows)))
    return folder, folder


def test_the_same_counts_agree(tmp_path: Path) -> None:
    # Histograms 2 2 1 3 and 6 1 1 0, as recorded; the chain's second answer goes another way.
    first, second = [0, 0, 1, 1, 2, 3, 3, 3], [0, 0, 0, 0, 0, 1, 1, 2]
    chains = [row("a", list(range(100, 120)), first), row("b", [200, 9], second, "code"), row("c", [1], [3] * 9)]
    found = agreement(*write(tmp_path, loads([1.5, 1.4]), chains), SETTING)
    assert (found.prompts, found.same_passes) == (2, 1)
    assert (found.served, found.chain) == (2.0, 1 + (13 + 4) / 16)
    assert not found.agrees, "3% more"
    assert str(found).startswith("WARNING: on the served answers, accept length 2.062, the server's 2.000; 1 of 2")
    chains[1] = row("b", [200, 9], [0, 0, 0, 0, 0, 0, 1, 2], "code")
    found = agreement(*write(tmp_path, loads([1.5]), chains), SETTING)
    assert found.agrees
    assert not str(found).startswith("WARNING")
    assert Agreement.of_summary(found.metrics() | {"eval/sequences": 2, "eval/accept_length": found.chain}) == found
    assert Agreement.of_summary({"eval/accept_length": 2.0}) is None
    assert found.metrics() == {
        "eval/followed/served_accept_length": 2.0,
        "eval/followed/chain_over_served": 1.0,
        "eval/followed/same_passes": 2,
    }


def test_the_load_of_fewest_requests_counts(tmp_path: Path) -> None:
    busy = [
        Load(SETTING, 0, 0.0, 16, 1.0, [reply("a", [1], [9])]),
        Load(SETTING, 0, 1.0, 1, 1.0, [reply("a", [1], [9])]),
    ]
    found = agreement(*write(tmp_path, [*busy, *loads([1.5])], [row("a", [1], [1])]), SETTING)
    assert found.served == 1 + 13 / 8


def test_nothing_in_common(tmp_path: Path) -> None:
    folder, _ = write(tmp_path, loads([1.5]), [row("z", [1], [1])])
    with pytest.raises(DataError, match="no prompt that is the same"):
        agreement(folder, folder, SETTING)
    with pytest.raises(DataError, match=r"no greedy answers with s9k1d10, but s3k1d4; the first of evaluate.drafts"):
        greedy_replies(folder, "s9k1d10")
    with pytest.raises(DataError, match=r"no served evaluation: it has no loads\.jsonl"):
        greedy_replies(folder / "elsewhere", SETTING)


def test_a_line_that_was_changed_is_not_counted(tmp_path: Path) -> None:
    folders = write(tmp_path, loads([1.5]), [row("a", [1], [1])])
    path = tmp_path / "chains.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"accepted": 1', b'"accepted": 3'))
    with pytest.raises(DataError, match=r"chains\.jsonl: line 1 is not what was written"):
        agreement(*folders, SETTING)
