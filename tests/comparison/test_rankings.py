"""What is one row, what is ranked by what, and what is said of it; also in a sweep's own table."""

import csv
import io
import json
import re
import warnings
from pathlib import Path

import pytest
from tests.comparison.made_runs import Runs

from eagle3.comparison import compare, headline
from eagle3.comparison.page import page
from eagle3.comparison.publish import summary, write
from eagle3.comparison.render import csv_text, markdown, plain_text
from eagle3.errors import ConfigError, DataError
from eagle3.pipeline.sweep_table import SWEEP_FILE, Record, read_records, write_tables


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def profiles(runs: Runs, rounds: int = 2) -> None:
    """Two NCCL profiles that tie in decoding and differ in prefill; decoding of 2 streams as well."""
    for name, prefill in (("default", 6000.0), ("ring_ll", 5000.0)):
        for number in range(rounds):
            rates = {"decode_1": 150.0 + 4 * number, "decode_2": 260.0 + number, "prefill": prefill + number}
            serving = {"name": name, "env": {"NCCL_PROTO": "LL"} if name == "ring_ll" else {}}
            notes = ["NCCL_PROTO=LL: not read"] if name == "ring_ll" else []
            runs.add({"nccl": {"serving": serving}, "bench": {"round": number}}, bench=rates, not_followed=notes)


def test_with_one_round_each_the_repeats_tell_what_is_a_tie(runs: Runs) -> None:
    """As measured on two H200s: LL rings decode as the default does, and prefill a fifth slower."""
    measured = {
        "default": ((275.0, 279.0, 279.2), (68700.0, 68900.0, 69000.0)),
        "ring_ll": ((279.0, 279.2, 280.0), (53490.0, 53500.0, 53530.0)),
    }
    for name, figures in measured.items():
        rates: dict[str, float] = {}
        for figure, (low, middle, high) in zip(("decode_1", "prefill"), figures, strict=True):
            rates |= {figure: middle, f"{figure}/smallest": low, f"{figure}/largest": high}
        runs.add({"nccl": {"serving": {"name": name, "env": {}}}, "bench": {"round": 0}}, bench=rates)
    found = compare([runs.at])
    said = headline(found)
    assert said[0] == "Serving: decode 1, tokens/s: nccl.serving=ring_ll 279.2, tie with nccl.serving=default."
    assert said[1].endswith("behind by +22.4% (repeats: +22.0% to +22.5%).")
    assert any("another start may differ by more" in line for line in said)
    assert "repeat" in page(found)
    (group,) = found.targets
    assert group.rankings[0].places[1].behind == "tie: +0.1% (repeats: -0.1% to +1.8%)"


def test_what_one_has_and_the_other_lacks_is_a_difference(runs: Runs) -> None:
    """Dictionaries that take any key: flags, environment, a profile's variables under a name that was kept."""
    plain, flags = {"until": "bench", "server": {"flags": {"serving": {}}}}, {"chunked_prefill_size": 64}
    runs.add(plain, bench={"decode_1": 1414.0})
    runs.add({"until": "bench", "server": {"flags": {"serving": flags}}}, bench={"decode_1": 441.0})
    found = compare([runs.at])
    assert [variant.setting for variant in found.served] == [
        {"chunked_prefill_size": ""},
        {"chunked_prefill_size": "64"},
    ]
    liar = {"name": "default", "env": {"NCCL_PROTO": "Simple"}}
    profiles = Runs(runs.at.parent / "profiles")
    for serving in (liar, {"name": "default", "env": {}}, {"name": "default", "env": {"NCCL_ALGO": "Ring"}}):
        profiles.add({**plain, "nccl": {"serving": serving}}, bench={"decode_1": 100.0})
    assert len(compare([profiles.at]).served) == 3
    rope = [{"rope_scaling": None}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}]
    others = Runs(runs.at.parent / "others")
    for drafter in rope:
        others.add({"drafter": drafter}, [0.5, 0.5])
    assert len(compare([others.at]).variants) == 2


def test_what_the_shell_set_for_nccl_is_a_difference(runs: Runs) -> None:
    """NCCL reads it beside the profile, which has the last word; the note is of that run alone."""
    config = {"until": "bench", "nccl": {"serving": {"name": "default", "env": {"NCCL_ALGO": "Ring"}}}}
    note = "NCCL_PROTO=Simple: comes from the shell"
    for env in ({}, {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Tree", "NCCL_VERSION": "2.28.9"}):
        folder = runs.add(config, bench={"decode_1": 100.0}, not_followed=[note] if env else [])
        made = json.loads((folder / "provenance.json").read_text())
        (folder / "provenance.json").write_text(json.dumps({**made, "nccl_env": env}))
    found = compare([runs.at])
    assert [variant.setting for variant in found.served] == [{"NCCL_PROTO": ""}, {"NCCL_PROTO": "Simple"}]
    assert f"NCCL_PROTO=Simple: {note}." in headline(found)


def test_a_note_of_one_run_of_a_row_names_that_run(runs: Runs) -> None:
    """On a CPU NCCL does nothing, whatever the shell sets."""
    config = {"until": "bench", "nccl": {"serving": {"name": "mine", "env": {"NCCL_ALGO": "Ring"}}}}
    for notes in ([], ["NCCL_PROTO=Simple: comes from the shell"]):
        runs.add(config, bench={"decode_1": 100.0}, not_followed=notes, nccl_unused=True)
    said = headline(compare([runs.at]))
    assert said[0].startswith("Serving: decode 1, tokens/s: 2 runs 100.0")
    assert "1: NCCL_PROTO=Simple: comes from the shell." in said
    assert "NCCL was not used (one GPU, or a CPU), so its profile changed nothing: mine." in said


def test_each_drafter_is_ranked_with_all_that_it_drafts(runs: Runs) -> None:
    for seed in (0, 1):
        runs.add({"seed": seed, "loss": {"ttt_steps": 1}}, [0.22 + seed / 1000])
        runs.add({"seed": seed, "loss": {"ttt_steps": 3}}, [0.22 + seed / 1000, 0.6, 0.6])
    found = compare([runs.at])
    (group,) = found.groups
    assert group.best is not None
    assert group.best.setting == {"ttt_steps": "3"}
    assert headline(found)[0].startswith("Best: ttt_steps=3, accept length 1.43")
    assert "more than the noise (2 and 2 seeds)" in headline(found)[1]
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert [float(row["accept_length_at_1"]) for row in rows] == pytest.approx([1.2205, 1.2205])
    assert "`at 1` is the accept length of each with 1" in plain_text(found)


def test_the_served_target_is_ranked_by_each_figure(runs: Runs, tmp_path: Path) -> None:
    profiles(runs)
    found = compare([runs.at])
    assert found.drafters == []
    said = headline(found)
    assert said[0] == "Serving: decode 1, tokens/s: nccl.serving=default 152.0 ± 2.8, tie with nccl.serving=ring_ll."
    assert said[1].startswith("Serving: decode 2, tokens/s: ")
    assert re.match("Extraction: prefill, tokens/s: nccl.serving=default 6,000 ± 1; next .*ring_ll, behind by", said[2])
    assert said[3] == "nccl.serving=ring_ll: NCCL_PROTO=LL: not read."
    for text in (" ".join(said), markdown(found), page(found)):
        assert not re.search("Dataset|no time|evaluated|drafters|seeds", text)
        assert "rounds" in text
    assert "Comparison of 2 configurations of the served target" in page(found)
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert [row["nccl.serving"] for row in rows] == ["default", "ring_ll"]
    assert float(rows[0]["decode_2_spread"]) == pytest.approx(0.7071, abs=1e-3)
    assert float(rows[1]["prefill_behind_best"]) == pytest.approx(1000)
    assert summary(found)["compare/best_prefill"] == "nccl.serving=default"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(found, tmp_path / "out")
    assert (tmp_path / "out" / "served.png").is_file()


def test_what_shares_a_measurement_is_one_row(runs: Runs) -> None:
    for layers, share in (([1, 2, 3], 0.3), ([1, 3, 5], 0.2)):
        for profile, rate in (("default", 100.0), ("ring_ll", 120.0)):
            config = {"layers": {"boundaries": layers}, "nccl": {"serving": {"name": profile, "env": {}}}}
            runs.add(config, [share], f"evaluate/{layers}", {"decode_1": rate, "prefill": rate}, f"bench/{profile}")
    found = compare([runs.at])
    assert [variant.setting for variant in found.variants] == [{"boundaries": "[1,2,3]"}, {"boundaries": "[1,3,5]"}]
    assert [len(variant.distinct) for variant in found.variants] == [1, 1]
    assert [variant.setting for variant in found.served] == [{"nccl.serving": "default"}, {"nccl.serving": "ring_ll"}]
    assert "+16.7%, spread not known" in plain_text(found)
    by_rate = compare([runs.at], order="decode_1")
    assert [variant.label for variant in by_rate.served] == ["nccl.serving=ring_ll", "nccl.serving=default"]
    assert by_rate.variants[0] is by_rate.groups[0].best
    only = compare([runs.at], ["nccl.serving=ring_ll", "boundaries=[1,3,5]"])
    assert (only.variants[0].label, only.served[0].label) == ("boundaries=[1,3,5]", "nccl.serving=ring_ll")


def test_a_drafter_whose_provenance_is_damaged_is_still_one(runs: Runs) -> None:
    folder = runs.add({}, [0.3], bench={"decode_1": 100.0})
    (folder / "provenance.json").write_text("torn {")
    found = compare([runs.at])
    assert (len(found.variants), len(found.served)) == (1, 1)
    assert headline(found)[0].startswith("0: accept length 1.300")


def test_where_picks_runs_and_what_is_left_keeps_its_name(runs: Runs) -> None:
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            optim = {"lr": lr, "fused": True, "note": "two words"}
            runs.add({"seed": seed, "optim": optim}, [0.2 + lr + seed / 100])

    def left(*where: str) -> list[tuple[str, int]]:
        return [(variant.label, len(variant.runs)) for variant in compare([runs.at], where).variants]

    assert left("seed=1") == left("seed=0") == [("lr=0.2", 1), ("lr=0.1", 1)]
    assert left("seed=1", "lr=0.1") == [("lr=0.1", 1)]
    assert csv_text(compare([runs.at / "0"])).startswith("run,measured,seeds,")
    assert left("dataset=jsonl") == left("dataset=jsonl 01234567") == [("lr=0.2", 2), ("lr=0.1", 2)]
    assert left("dataset!=other") == left()
    assert left("optim.fused=true") == left("optim.fused=True") == left("optim.note=two words") == left()
    with pytest.raises(DataError, match="no run is left"):
        left("optim.fused=false")
    for typed, meant in (("lrr", "optim.lr"), ("accept_lenght", "accept_length"), ("optim.nota", "optim.note")):
        with pytest.raises(ConfigError, match=rf"^{typed}: .*did you mean {meant}\?"):
            left(f"{typed}=1")
    assert left("accept_length>1.404") == [("lr=0.2", 2)], "a figure is its row's: seeds are not picked by it"


def test_the_hours_of_all_hold_the_served_targets_and_say_what_is_not_known(runs: Runs) -> None:
    runs.add({}, [0.2], train__stage_seconds=3600.0)
    served = {"until": "bench", "server": {"device": "cuda", "tp": 2, "flags": {"serving": {"dp_size": 3}}}}
    runs.add(served, bench={"decode_1": 100.0, "stage_seconds": 1800.0}, cost__gpu_hours=1.0)
    assert "2 runs took 3 GPU-hours and 1 hours on a CPU; what they share counts once." in headline(compare([runs.at]))
    found = compare([runs.at])
    assert [run.summary["cost/gpu_hours"] for run in found.all_runs] == [0, 3.0], "though an older report says 1"
    runs.add(served, bench={"decode_1": 101.0})  # made before its time was kept
    assert headline(compare([runs.at]))[-1].endswith("counts once. Of 1 more the time is not known.")


def test_equal_is_said_and_no_time_is_no_rate(runs: Runs) -> None:
    for lr in (0.1, 0.2):
        runs.add({"optim": {"lr": lr}, "bench": {"repeats": lr}}, [0.2], extract__tokens_per_s=0.0)
    found = compare([runs.at])
    text = plain_text(found)
    assert "The next, lr=0.2, is equal" in text
    assert re.search(r"0\.2 +1 +1\.200 ± 0\.000 +equal", text)
    assert "extract" not in text
    assert "repeats" not in text, "bench.* tells nothing of runs that measured no served target"


@pytest.mark.parametrize("width", [200, 100, 60, 30])
def test_a_narrow_terminal_cuts_no_word(runs: Runs, width: int) -> None:
    for size in (64, 128):
        config = {"drafter": {"intermediate_size": size, "draft_vocab_size": 2 * size}, "loss": {"ttt_steps": 3}}
        runs.add(config, [0.5, size / 1000, 0.3], train__tokens_per_s=1234.5, cost__cpu_hours=0.1)
    profiles(runs)
    text = plain_text(compare([runs.at]), width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("1.583 ±", "behind the best", "tokens/s", "rounds", "draft_vocab_size"):
        assert word in text, (word, text)


def test_a_sweeps_table_says_what_its_comparison_says(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = []
    for lr, share in ((0.1, 0.12), (0.2, 0.14)):
        for seed in (0, 1, 2):
            folder = runs.add({"seed": seed, "optim": {"lr": lr}}, [share + seed * seed / 100])
            jobs.append([f"optim.lr={lr}", f"seed={seed}"])
            Record(len(jobs) - 1, jobs[-1]).end(folder, "done", 5.0)
    (runs.at / SWEEP_FILE).write_text(json.dumps({"jobs": jobs}))
    found = compare([runs.at])
    write_tables(runs.at, read_records(runs.at), found.rankings)
    said = capsys.readouterr().out
    assert "by accept length" in said
    row = found.rankings[0].rows()[0]
    assert row == ["lr=0.2", "1.157 ± 0.021", "3", "best"]
    for text in (said, (runs.at / "sweep.md").read_text(), plain_text(found)):
        assert "1.157 ± 0.021" in text
        assert found.rankings[0].rows()[1][-1] in text
    assert "accept length 1.157" in headline(found)[0]
    assert compare([runs.at / "0"]).variants[0].label == "optim.lr=0.1", "by what its sweep varied"


def test_a_click_sorts_by_how_far_behind(runs: Runs) -> None:
    for lr, share in ((0.1, 0.12), (0.2, 0.14)):
        runs.add({"optim": {"lr": lr}}, [share])
    text = page(compare([runs.at]))
    assert text.count("data-sorted") == 1
    behind = [float(value) for value in re.findall(r'data-behind="([^"]*)"', text)]
    assert behind == pytest.approx([0, 0.02])


def test_many_long_names_leave_the_plots_their_room(runs: Runs, tmp_path: Path) -> None:
    for lr in range(8):
        config = {
            "target": {"chat_template": f"/models/{'long/' * 5}{lr}"},
            "optim": {"lr": lr},
            "loss": {"kind": f"kind_{lr}"},
        }
        runs.add(config, [0.5, 0.4], train__tokens_per_s=1000.0 + lr)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(compare([runs.at]), tmp_path / "out")
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"accept_length", "acceptance", "rates"}
