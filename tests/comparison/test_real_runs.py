"""`eagle3 compare` on folders that run.py itself left, and what those runs left in W&B's own files."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from tests.pipeline.imported_runs import copy_project, overrides, run, write_place

from eagle3.cli import main
from eagle3.comparison import compare
from eagle3.comparison.publish import publish
from eagle3.tracking.offline import read_offline


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one drafter (the second a replay with one override), one of another, a failure, one not trained."""
    place = tmp_path_factory.mktemp("compared")
    project = copy_project(place / "eagle3")
    write_place(place, 120)
    common = [*overrides(place, "drafter.draft_vocab_size=512"), "trainer.epochs=4"]

    def made(name: str, *arguments: str, expected: int = 0) -> str:
        at = f"hydra.run.dir={place / 'runs' / name}"
        code, output = run([*arguments, at], place, project)
        assert code == expected, output
        return output

    made("a", *common, "optim.lr=2e-2", "tracking.tags=[mine]")
    output = made("b", "--config-dir", str(place / "runs" / "a"), "snapshot=replay", "seed=1")
    assert "configuration: seed: 0 -> 1" in output
    assert re.search(r"the drafter is not bitwise that of .*/a: its weights differ by [\d.e-]+ of their norm", output)
    made("c", *common, "optim.lr=1e-5")
    made("failed", *common, "optim.lr=1e30", expected=1)
    made("prepared", *common, "until=prepare")
    return place


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["compare", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_one_table_names_the_best_and_what_was_left_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "empty").mkdir(exist_ok=True)
    drafter = place / "runs" / "a" / "drafter"
    paths = [place / "runs", place / "empty", drafter, place / "runs" / "a" / "config.yaml"]
    code, out, err = compared(capsys, *map(str, paths))
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if "±" in line and line.startswith("  ")]
    assert [line.split()[0] for line in rows] == ["0.02", "1e-05"], "best first, a row for a configuration"
    assert re.match(r" +0.02 +2 +[\d.]+ ± [\d.]+ +best ", rows[0])
    assert "Best: lr=0.02" in out
    assert "(bootstrap of" in out
    for path, why in (
        (place / "runs" / "failed", "not finished: "),
        (place / "empty", "no run is in it"),
        (drafter, "drafter's folder; give that of the run"),
        (paths[-1], "a file; give the folder"),
    ):
        assert any(line.startswith(f"left out: {path}: ") and why in line for line in out.splitlines()), (path, out)


def test_a_path_that_is_not_there_is_a_mistake(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where there are runs at others: a table without the one that was meant would look whole."""
    for paths in ([place / "runs", place / "nowhere"], [place / "nowhere"]):
        code, out, err = compared(capsys, *map(str, paths))
        assert (code, out, err) == (2, "", f"error: {place / 'nowhere'}: there is no such path\n")


def test_files_hold_the_same_and_the_page_needs_no_network(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = [tmp_path / f"c{ending}" for ending in (".html", ".md", ".csv")]
    code, out, err = compared(capsys, str(place / "runs"), *(word for path in outs for word in ("--out", str(path))))
    assert (code, err) == (0, ""), out
    page, text = (path.read_text() for path in outs[:2])
    rows = list(csv.DictReader(outs[2].open()))
    assert [row["lr"] for row in rows[:2]] == ["0.02", "1e-05"]
    a, b = (json.loads((place / "runs" / n / "report" / "summary.json").read_text()) for n in ("a", "b"))
    mean = (a["eval/accept_length"] + b["eval/accept_length"]) / 2
    assert float(rows[0]["accept_length"]) == pytest.approx(mean, abs=1e-9)
    assert (rows[0]["seeds"], rows[0]["spread_of"]) == ("2", "2 seeds")
    assert rows[0]["runs"] == f"{place / 'runs' / 'a'};{place / 'runs' / 'b'}"
    assert float(rows[1]["behind_best_low"]) <= float(rows[1]["behind_best"]) <= float(rows[1]["behind_best_high"])
    assert page.count("<svg") == 3
    assert not re.findall(r"(?:src|href)=[\"'](?!#)", page), "something is loaded"
    assert f"| {float(rows[0]['accept_length']):.3f}" in text.replace("**", "")
    assert "Left out" in page


def test_sorted_and_filtered(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = str(place / "runs")

    def order(*words: str) -> list[str]:
        code, out, err = compared(capsys, runs, *words)
        assert code == 0, err
        return [line.split()[0] for line in out.splitlines() if line.startswith("  ") and "±" in line]

    assert order("--sort", "lr") == ["1e-05", "0.02"]
    assert order("--sort", "optim.lr", "--reverse") == ["0.02", "1e-05"]
    assert order("--reverse") == ["1e-05", "0.02"]
    assert len(order("--where", "lr=0.02")) == 1
    assert len(order("--where", "accept_length>1", "--where", "lr<1")) == 2
    for words, says in (
        (["--where", "lr=7"], "no run is left by --where lr=7"),
        (["--where", "lr"], "write KEY=VALUE"),
        (["--where", "accept_length>much"], "needs a number"),
        (["--sort", "beauty"], "beauty: no figure and no key"),
        (["--sort", "path"], "could be dataset.path, target.path"),
        (["--out", "x.pdf"], ".html, .md, .csv"),
    ):
        code, out, err = compared(capsys, runs, *words)
        assert (code, out) == (1 if "left" in says else 2, "")
        assert says in err


def test_nothing_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = compared(capsys, str(tmp_path))
    assert (code, out) == (1, "")
    assert "nothing to compare" in err
    assert str(tmp_path) in err


@pytest.mark.parametrize(
    "damage", ["config.yaml", "report/summary.json", "report/sequences.safetensors", "provenance.json"]
)
def test_a_damaged_folder_costs_a_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    copy = shutil.copytree(place / "runs" / "c", tmp_path / "c")
    (copy / damage).unlink()
    (copy / damage).write_bytes(b"\xff{: not what it was")
    code, out, err = compared(capsys, str(place / "runs" / "a"), str(copy))
    assert (code, err) == (0, ""), out
    said = {
        "config.yaml": f"left out: {copy}: config.yaml can't be read",
        "report/summary.json": f"left out: {copy}: finished, but report/summary.json can't be read",
        "report/sequences.safetensors": "(simulated, unknown split, 3 drafted tokens); nothing else here",
        "provenance.json": "(simulated, unknown target, unknown conversations, 3 drafted tokens); nothing else here",
    }
    assert said[damage] in " ".join(out.split())


def test_a_runs_wandb_file_has_everything(place: Path) -> None:
    folder = place / "runs" / "a"
    found = read_offline(folder)
    summary = json.loads((folder / "report" / "summary.json").read_text())
    assert (found.group, found.name, found.job_type, found.exit_code) == ("tiny", "tiny/a", "evaluate", 0)
    assert {"target=local", "dataset=jsonl", "server=cpu", "trainer=cpu", "mine"} <= set(found.tags)
    assert found.config["optim"]["lr"] == 0.02
    assert found.config["provenance"]["dataset"]["fingerprint"]
    assert len(found.series("train/loss")) >= 4
    assert found.series("eval/accept_length") == [summary["eval/accept_length"]]
    for name in ("seed", "dataset", "dataset_fingerprint", "boundaries", "eval/accept_length", "cost/cpu_hours"):
        assert found.summary[name] == summary[name], name
    artifacts = {artifact.type: artifact for artifact in found.artifacts if artifact.type != "run_table"}
    assert set(artifacts) == {"dataset", "model", "report"}
    assert {"config.json", "model.safetensors", "provenance.json", "snapshot/replay.yaml"} <= set(
        artifacts["model"].files
    )
    assert {"report.md", "summary.json", "sequences.safetensors"} <= set(artifacts["report"].files)
    # Dataset -> drafter -> report, each by the name and W&B's own digest of what it came from.
    of_drafter, of_report = (artifacts[kind].metadata["made_from"] for kind in ("model", "report"))
    assert of_drafter["dataset"]["artifact"] == artifacts["dataset"].name
    assert of_report["drafter"]["artifact"] == artifacts["model"].name
    assert of_report["dataset"] == of_drafter["dataset"]
    assert re.fullmatch("[0-9a-f]{32}", of_report["drafter"]["digest"])


def test_a_sweeps_comparison_is_a_run_in_its_group(place: Path, tmp_path: Path) -> None:
    sweep = shutil.copytree(place / "runs", tmp_path / "sweep")
    said: list[str] = []
    publish(sweep, compare([sweep]), warn=said.append)
    assert said == []
    logged = read_offline(sweep / "wandb")
    assert (logged.group, logged.job_type, logged.exit_code) == ("tiny", "compare", 0)
    assert logged.summary["compare/best"] == "lr=0.02"
    assert logged.summary["compare/runs"] == 4
    assert logged.summary["compare/exceeds_noise"] in (True, False)
    assert logged.series("compare/runs")[0]["_type"] == "table-file"
    assert logged.series("plots/accept_length")[0]["_type"] == "image-file"
    (report,) = (artifact for artifact in logged.artifacts if artifact.type == "report")
    assert {"comparison.html", "comparison.md", "comparison.csv", "accept_length.png"} <= set(report.files)
    assert len(compare([sweep]).all_runs) == 4, "its own files are no run"
