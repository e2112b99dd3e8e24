"""The `eagle3` command, on folders that the stages' own writers made."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.speaking import spoken
from tests.data.small_datasets import write
from tests.drafter.targets import make_target
from tests.tracking.artifact_samples import write_all, write_drafter

from eagle3.cli import main
from eagle3.commands import checks
from eagle3.config.schema import DrafterConfig
from eagle3.drafter.export import export_drafter
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import Eagle3Error
from eagle3.target.info import TargetInfo

Usage = namedtuple("Usage", "total used free")


def test_help_is_fast_and_whole() -> None:
    """Nothing heavy is imported before a command is known."""
    code = (
        "import sys; from eagle3.cli import _parser; text = _parser().format_help(); "
        "assert 'doctor' in text and 'inspect' in text and 'verify' in text; "
        "heavy = {'torch', 'numpy', 'rich', 'hydra', 'wandb', 'matplotlib', 'sglang'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("words", [[], ["frobnicate"], ["verify"]])
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(words)
    assert leaving.value.code == 2
    assert "usage: eagle3" in capsys.readouterr().err


# -- verify ------------------------------------------------------------


def test_verify_a_good_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "data", [5, 7, 3])
    code, out, _ = spoken(capsys, "verify", str(tmp_path / "data"))
    assert code == 0
    assert "nothing wrong" in out


def test_verify_names_the_first_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write(tmp_path / "data", [5, 7, 3])
    layout = manifest.layout(manifest.shards[0])
    with (tmp_path / "data" / manifest.shards[0].file).open("r+b") as file:
        for row in (6, 13):  # a row of the second sequence, and one of the third
            file.seek(layout.rows("boundary.3", row, 1)[0])
            file.write(b"\x7f")
    code, out, _ = spoken(capsys, "verify", str(tmp_path / "data"))
    assert code == 1
    assert len(out.splitlines()) == 1
    assert "sequence 103, boundary.3" in out
    code, out, _ = spoken(capsys, "verify", str(tmp_path / "data"), "--all")
    assert code == 1
    assert len(out.splitlines()) == 2


@pytest.fixture
def drafter(tmp_path: Path) -> tuple[TargetInfo, Path]:
    """A target, and a drafter in the folder of the training that made it."""
    target = make_target(tmp_path / "target")
    shape = DrafterShape.build(DrafterConfig(draft_vocab_size=48), target, 3)
    training = tmp_path / "train" / "t1"
    export_drafter(Drafter(shape), torch.arange(48), [2, 4, 5], target, training / "drafter", "0.5.23")
    (training / "job.json").write_text(json.dumps({"target": str(target.path), "boundaries": [2, 4, 5]}))
    return target, training / "drafter"


def test_verify_a_drafter(tmp_path: Path, drafter: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str]) -> None:
    target, folder = drafter
    for path in (folder, folder.parent):
        code, out, err = spoken(capsys, "verify", str(path))
        assert (code, err) == (0, ""), out
        assert "nothing wrong" in out
    alone = shutil.copytree(folder, tmp_path / "alone")
    code, _, err = spoken(capsys, "verify", str(alone))
    assert code == 2
    assert "--target" in err
    assert spoken(capsys, "verify", str(alone), "--target", str(target.path))[0] == 0


def test_verify_names_a_drafters_first_fault(
    tmp_path: Path, drafter: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = drafter
    tensors = load_file(folder / "model.safetensors")
    tensors["midlayer.self_attn.extra.weight"] = tensors.pop("fc.weight")
    save_file(tensors, folder / "model.safetensors")
    code, out, _ = spoken(capsys, "verify", str(folder))
    assert code == 1
    assert len(out.splitlines()) == 1
    assert "fc.weight is missing" in out
    other = make_target(tmp_path / "other", num_layers=9)
    code, out, _ = spoken(capsys, "verify", str(folder), "--all", "--target", str(other.path))
    assert code == 1
    assert "extra.weight is unknown" in out
    assert "another model" in out.splitlines()[0], "the rest may follow from it"


def test_inspect_an_exported_drafter(drafter: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str]) -> None:
    target, folder = drafter
    code, out, _ = spoken(capsys, "inspect", str(folder))
    assert code == 0
    for text in ("an EAGLE-3 drafter", "LlamaForCausalLM, 8 layers", "2, 4, 5", f"--model-path {target.path}"):
        assert text in out


def test_verify_what_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "empty").mkdir()
    prepared = write_all(tmp_path / "artifacts")["prepare"]
    for path, why in (
        (tmp_path / "nowhere", "no such path"),
        (tmp_path / "a file", "give the folder"),
        (tmp_path / "empty", "nothing that eagle3 knows"),
        (tmp_path / "artifacts" / "extract" / "e1", f"did you mean {tmp_path / 'artifacts' / 'extract' / 'e1'}"),
        (prepared, "nothing to verify"),
    ):
        code, _, err = spoken(capsys, "verify", str(path))
        assert code == 2
        assert err.startswith("error: ")
        assert why in err
        assert len(err.splitlines()) == 1


# -- inspect ------------------------------------------------------------


def test_inspect_each_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = write_all(tmp_path)
    for name, texts in {
        "prepare": ("prepared prompts", "240 of 243", "2 x not JSON", "quickstart.jsonl line 7: not JSON"),
        "extract": ("dataset of hidden states", "boundaries 2, 15, 27", "0.5.23", "eagle3 verify", "0.004 nats"),
        "train": ("a training", "ce", "accept length", "finished"),
        "evaluate": ("an evaluation", "accept length 1.93", "accept length 1.01"),
    }.items():
        code, out, _ = spoken(capsys, "inspect", str(folders[name]))
        assert code == 0
        for text in texts:
            assert text in out


def test_inspect_a_real_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write(tmp_path / "data", [5, 7, 3])
    code, out, _ = spoken(capsys, "inspect", str(tmp_path / "data"))
    assert code == 0
    assert "3 sequences, 15 tokens" in out
    manifest.complete = False
    manifest.save(tmp_path / "data")
    assert "not complete: 3 of 3" in spoken(capsys, "inspect", str(tmp_path / "data"))[1]


def test_inspect_a_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = spoken(capsys, "inspect", str(write_drafter(tmp_path / "drafter")))
    assert code == 0
    assert "an EAGLE-3 drafter" in out
    assert "576 parameters" in out
    assert "--speculative-draft-model-path" in out


def test_inspect_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = write_all(tmp_path / "artifacts")
    run = tmp_path / "runs" / "quick" / "now"
    write_drafter(run / "drafter")
    shutil.copytree(folders["evaluate"], run / "report")
    (run / "snapshot").mkdir()
    (run / "snapshot" / "replay.yaml").touch()
    artifacts = ", ".join(f'"{name}": "{folder}"' for name, folder in folders.items())
    (run / "provenance.json").write_text(
        '{"command": "run.py experiment=quick", "target": {"name": "t", "source": "local"}, "boundaries": [2, 15, 27],'
        f' "artifacts": {{{artifacts}}}}}'
    )
    code, out, _ = spoken(capsys, "inspect", str(run))
    assert code == 0
    for text in ("not finished", "run.py experiment=quick", "accept length 1.93", str(folders["train"]), "replay"):
        assert text in out
    (run / "DONE").touch()
    assert "not finished" not in spoken(capsys, "inspect", str(run))[1].splitlines()[1]
    _, _, err = spoken(capsys, "inspect", str(run.parent))
    assert f"did you mean {run}?" in err


# -- doctor ------------------------------------------------------------


def test_doctor_checks_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(checks, "hub", lambda: checks.Finding("ok", "not asked in a test"))
    monkeypatch.setattr(checks, "LITTLE_DISK", 0)
    monkeypatch.setattr(checks, "NO_DISK", 0)
    code, out, _ = spoken(capsys, "doctor", "--artifacts", str(tmp_path / "a"), "--cache", str(tmp_path / "c"))
    assert code == 0, out
    names = ("Python", "packages", "SGLang", "GPU", "memory", "artifacts", "cache", "shared memory", "ports", "W&B")
    for name in names:
        assert any(line.startswith((f"ok   {name}", f"warn {name}")) for line in out.splitlines()), name
    assert not list(tmp_path.iterdir()), "doctor changed something"
    assert "0000000000" not in out


def test_doctor_fails_when_something_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "hub", lambda: checks.Finding("ok", "not asked in a test"))
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: Usage(100 << 30, 99 << 30, 1 << 30))
    code, out, _ = spoken(capsys, "doctor", "--artifacts", str(tmp_path))
    assert code == 1
    assert "fail artifacts     1 GiB free" in out
    assert "-> free some" in out
    assert "to repair" in out


def test_no_disk_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    finding = checks.disk(tmp_path / "below", "paths.artifacts")
    assert finding.verdict == "fail"
    assert str(tmp_path) in finding.found
    assert "paths.artifacts=" in finding.remedy


def test_little_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: Usage(64 << 20, 0, 64 << 20))
    assert checks.shared_memory(tmp_path).verdict == "warn"
    assert checks.shared_memory(tmp_path / "nowhere").verdict == "fail"


def test_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.sys, "version_info", (3, 14, 0))
    assert checks.python().verdict == "fail"


def test_packages_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["numpy>=99", "surely-not-installed>=1", "rich>=1", 'hypothesis>=99; extra == "dev"']
    monkeypatch.setattr(checks.importlib.metadata, "requires", lambda _: requirements)
    finding = checks.packages()
    assert finding.verdict == "fail"
    assert "numpy" in finding.found
    assert "surely-not-installed is missing" in finding.found
    assert "hypothesis" not in finding.found
    assert "rich" not in finding.found


@pytest.mark.parametrize(("version", "verdict"), [("0.5.8", "fail"), ("0.5.9", "ok"), ("9.0", "fail")])
def test_sglang_against_the_plugin(version: str, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3.server import arguments

    monkeypatch.setattr(arguments, "installed", lambda _: arguments.Installed(version, frozenset()))
    assert checks.sglang(None).verdict == verdict


def test_sglang_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3.server import arguments

    def missing(_: str | None) -> None:
        raise Eagle3Error("SGLang is not installed")

    monkeypatch.setattr(arguments, "installed", missing)
    assert checks.sglang("/usr/bin/python3").verdict == "fail"


def test_hub_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    finding = checks.hub()
    assert finding.verdict == "warn"
    assert "can't be reached" in finding.found


def test_torch_cuda_is_read_without_torch() -> None:
    assert checks.torch_cuda() == torch.version.cuda
