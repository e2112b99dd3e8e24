"""`eagle3 export` and `eagle3 verify` of drafters, from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.cli.speaking import spoken
from tests.drafter.foreign import BOUNDARIES, make_ours, make_theirs, rewrite
from tests.drafter.targets import make_target

from eagle3.target.info import TargetInfo


@pytest.fixture
def run(tmp_path: Path) -> tuple[TargetInfo, Path]:
    """A run that trained on boundaries 3, 4, 6 of a target that SGLang reads in two ways."""
    target = make_target(tmp_path / "target", "DeepseekV3ForCausalLM")
    folder = tmp_path / "runs" / "mine" / "now"
    make_ours(folder / "drafter", target, [3, 4, 6], norm_output=True)
    made = {
        "target": {"path": str(target.path), "name": "tiny", "source": "hub:me/tiny@abc"},
        "versions": {"torch": "2"},
        "artifacts": {"prepare": "/a/prepare/12ab", "extract": "/a/extract/34cd/b3.4.6"},
    }
    (folder / "provenance.json").write_text(json.dumps(made))
    (folder / "config.yaml").write_text("loss: {ttt_steps: 5}\n")
    (folder / "report").mkdir()
    figures = {"eval/accept_length": 2.345, "prepare/tokens": 12345, "prepare/response_tokens": 6789}
    figures |= {"train/sequences": 216, "train/held_out_sequences": 24}
    (folder / "report" / "summary.json").write_text(json.dumps(figures))
    return target, folder


def plain(config: dict[str, Any]) -> None:
    """As if trained without EAGLE-3.1's norm of the carried state."""
    config["norm_output"] = config["eagle3"]["config"]["norm_output"] = False


def ids(folder: Path) -> list[int]:
    return json.loads((folder / "config.json").read_text())["eagle_config"]["eagle_aux_hidden_state_layer_ids"]


def test_the_named_version_decides_the_ids(
    run: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, folder = run
    rewrite(folder / "drafter", plain)
    for version, wanted in (("0.5.11", [2, 3, 5]), ("0.5.12", [2, 3, 5]), ("0.5.13", [3, 4, 6])):
        code, out, err = spoken(capsys, "export", str(folder), "--format", "sglang", "--sglang-version", version)
        assert (code, err) == (0, ""), out
        made = folder / f"drafter-sglang-{version}"
        assert ids(made) == wanted
        assert "--speculative-num-steps 3" in out
        before, after = (load_file(f / "model.safetensors") for f in (folder / "drafter", made))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert spoken(capsys, "verify", str(made))[0] == 0
    assert ids(folder / "drafter") == [3, 4, 6]


def test_the_model_card(run: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target, folder = run
    out = tmp_path / "card"
    assert spoken(capsys, "export", str(folder), str(out), "--format", "sglang", "--sglang-version", "0.5.17")[0] == 0
    card = (out / "README.md").read_text()
    for text in (
        'base_model: "me/tiny"',
        "For SGLang 0.5.17. It reads boundaries 3, 4, 6",
        "--model-path me/tiny",
        "| accept length, simulated on held-out conversations | 2.35 |",
        "12,345",
        "| of them in responses, held-out conversations included | 6,789 |",
        "| sequences trained on | 216 |",
        "| sequences held out | 24 |",
        "| prepare | `12ab` |",
        "| extract | `34cd/b3.4.6` |",
        "| layers | 1 |",
        "norm_output",
        "torch 2",
        target.fingerprint[:16],
    ):
        assert text in card, text


def test_what_made_it_goes_with_it(
    run: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Wherever the export is taken: its target is known, and how to train it again."""
    _, folder = run
    (folder / "snapshot").mkdir()
    (folder / "snapshot" / "replay.yaml").write_text("name: mine\n")
    for form in ("sglang", "speculators"):
        out = tmp_path / "elsewhere" / form
        assert spoken(capsys, "export", str(folder), str(out), "--format", form)[0] == 0
        code, said, err = spoken(capsys, "verify", str(out))
        assert (code, err) == (0, ""), said
        assert "nothing wrong" in said
        code, said, _ = spoken(capsys, "inspect", str(out))
        assert code == 0
        assert f"--config-dir {out} snapshot=replay" in said
    again = tmp_path / "again"
    assert spoken(capsys, "export", str(out), str(again), "--format", "sglang")[0] == 0
    assert (again / "snapshot" / "replay.yaml").read_text() == "name: mine\n"
    assert "me/tiny" in (again / "README.md").read_text()


def test_for_vllm(run: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = run
    code, out, _ = spoken(capsys, "export", str(folder), "--format", "speculators")
    assert code == 0
    made = folder / "drafter-speculators"
    config = json.loads((made / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [3, 4, 6]
    assert config["speculators_config"]["verifier"]["name_or_path"] == "me/tiny"
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    assert "vllm serve me/tiny" in out
    assert spoken(capsys, "verify", str(made))[0] == 0
    # And back again.
    code, out, err = spoken(capsys, "export", str(made), str(folder / "back"), "--format", "sglang")
    assert (code, err) == (0, ""), out
    before, after = (load_file(f / "model.safetensors") for f in (folder / "drafter", folder / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_drafter_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = make_target(tmp_path / "target")
    folder = make_theirs(tmp_path / "theirs", target)
    given = ("--target", str(target.path))
    code, out, err = spoken(capsys, "verify", str(folder), *given)
    assert (code, err) == (0, ""), out
    assert spoken(capsys, "export", str(folder), str(tmp_path / "ours"), "--format", "sglang", *given)[0] == 0
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["eagle3"]["boundaries"] == BOUNDARIES
    rewrite(folder, lambda c: c["eagle_config"].update(eagle_aux_hidden_state_layer_ids=[2, 4, 5]))
    code, out, _ = spoken(capsys, "verify", str(folder), *given)
    assert code == 1
    assert "probably one off" in out
    code, _, err = spoken(capsys, "export", str(folder), str(tmp_path / "no"), "--format", "sglang", *given)
    assert code == 1
    assert "probably one off" in err
    assert spoken(capsys, "verify", str(folder), *given, "--boundaries", "3,5,6")[0] == 0


def test_an_export_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An embedding of its own: neither layout takes it."""
    target = make_target(tmp_path / "target")
    folder = make_theirs(tmp_path / "theirs", target)
    rewrite(folder, tensors=lambda s: s.update({"embed_tokens.weight": torch.ones(128, 64)}))
    given = ("--target", str(target.path))
    for form, instead in (("speculators", "has the target's embedding"), ("sglang", "has none, and SGLang takes")):
        code, _, err = spoken(capsys, "export", str(folder), str(tmp_path / form), "--format", form, *given)
        assert code == 0
        assert "note: model.safetensors: embed_tokens.weight is not the target's embedding" in err
        assert f"note: what is written {instead}" in err
        assert spoken(capsys, "verify", str(tmp_path / form), *given)[0] == 0


def test_a_faulty_drafter_is_not_exported(run: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = run
    rewrite(folder / "drafter", tensors=lambda s: s.pop("fc.weight"))
    code, _, err = spoken(capsys, "export", str(folder), "--format", "sglang", "--sglang-version", "0.5.23")
    assert code == 1
    assert "fc.weight is missing" in err
    assert not (folder / "drafter-sglang-0.5.23").exists()


def test_what_a_version_does_not_have(run: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Before 0.5.12 SGLang's drafter knows no switches, and would carry the un-normed state."""
    _, folder = run
    code, _, err = spoken(capsys, "export", str(folder), "--format", "sglang", "--sglang-version", "0.5.11")
    assert code == 2
    assert "norm_output is on: SGLang 0.5.11 has no such drafter" in err
    code, out, _ = spoken(capsys, "verify", str(folder / "drafter"), "--sglang-version", "0.5.11", "--all")
    assert code == 1
    assert "norm_output is on" in out


def test_several_layers(run: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Before 0.5.12 SGLang's drafter has one."""
    target, folder = run
    make_ours(folder / "drafter", target, [3, 4, 6], num_layers=2)
    code, _, err = spoken(capsys, "export", str(folder), "--format", "sglang", "--sglang-version", "0.5.11")
    assert code == 2
    assert "it has 2 layers: SGLang 0.5.11 has no such drafter; 0.5.12 and newer have" in err
    code, out, _ = spoken(capsys, "verify", str(folder / "drafter"), "--sglang-version", "0.5.11", "--all")
    assert code == 1
    assert "it has 2 layers" in out
    for form, name in (("sglang", "sglang-0.5.12"), ("speculators", "speculators")):
        given = ("--sglang-version", "0.5.12") if form == "sglang" else ()
        code, out, err = spoken(capsys, "export", str(folder), "--format", form, *given)
        assert (code, err) == (0, ""), out
        assert "| layers | 2 |" in (folder / f"drafter-{name}" / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "speculators", "--sglang-version", "0.5.23"), "has no meaning for --format speculators"),
        (("--format", "sglang", "--sglang-version", "new"), "not a version"),
    ],
)
def test_wrong_usage(
    run: tuple[TargetInfo, Path], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = spoken(capsys, "export", str(run[1]), *arguments)
    assert code == 2
    assert message in err
