"""A mistake in a file of the configuration names the file, and a profile that is chosen otherwise the right way."""

import logging
import signal
import sys
from pathlib import Path

import hydra
import pytest
from tests.pipeline.imported_runs import run

from eagle3 import config
from eagle3.pipeline.main import main

ASKED = ["name=x", "target=smollm2", "server=cpu", "dataset=quickstart", "until=bench", "mode=plan"]
FILES = {
    "unclosed": b"name: [bad yaml\n",
    "quote": b"env:\n  NCCL_PROTO: 'LL\n",
    "twice": b"name: a\nname: b\n",
    "tab": b"name: a\n\tenv: {}\n",
    "latin": b"name: \xff\n",
    "number": b"5\n",
    "control": b"name: a\x01\n",
    "unfinished": b'name: "${nope"\n',
    "empty": b"name: a\nenv:\n",
    "listed": b"name: a\nenv: [NCCL_PROTO=LL]\n",
    "list": b"- a\n",
    "text": b"name: a\nenv: NCCL_PROTO=LL\n",
    "unknown": b"nam: a\n",
}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "nccl").mkdir()
    for name, content in FILES.items():
        (tmp_path / "nccl" / f"{name}.yaml").write_bytes(content)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\noptim:\n  lrr: 1\n")
    return tmp_path


def said(conf: Path, *more: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that is wrong."""
    config.register()
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(sys, "argv", [str(config.PROJECT / "run.py"), "--config-dir", str(conf), *ASKED, *more])
    job = hydra.main(version_base="1.3", config_path=str(config.PROJECT / "conf"), config_name="config")
    assert main(job(lambda cfg: None)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1, captured.err
    return captured.err.removeprefix("error: ")


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("unclosed", "{0}, line 1: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'"),
        ("quote", "{0}, line 2: while scanning a quoted scalar, found unexpected end of stream"),
        ("twice", "{0}, line 2: while constructing a mapping, found duplicate key name"),
        ("tab", "{0}, line 2: while scanning for the next token, found character '\\t' that cannot start any token"),
        ("latin", "{0}: 'utf-8' codec can't decode byte 0xff"),
        ("number", "{0}: Invalid loaded object type: int"),
        ("control", "{0}: unacceptable character #x0001"),
        ("unfinished", "{0}: no viable alternative at input '${{nope'"),
        (
            "empty",
            "nccl/empty.yaml: nccl.serving.env: nothing is given; give a value, or leave the line out; a profile",
        ),
        ("listed", "nccl/listed.yaml: a list stands where lines of `key: value` belong; a profile is `name: mine`"),
        ("list", "nccl/list.yaml: a list stands where lines of `key: value` belong; a profile is `name: mine`"),
        ("text", "nccl/text.yaml: nccl.serving.env: a single value stands where lines of `key: value` belong"),
        ("unknown", "nccl/unknown.yaml: nccl.serving.nam: no such key; did you mean nccl.serving.name?"),
    ],
)
def test_the_file_is_named(
    conf: Path, profile: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(conf, f"nccl@nccl.serving={profile}", monkeypatch=monkeypatch, capsys=capsys)
    assert told.startswith(says.format(conf / "nccl" / f"{profile}.yaml")), told


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("nccl.serving=ring_ll", "nccl.serving=ring_ll: a profile is chosen with nccl@nccl.serving=ring_ll"),
        ("nccl.extraction=ll", "nccl.extraction=ll: a profile is chosen with nccl@nccl.extraction=ll"),
        ("nccl=ring_ll", "nccl=ring_ll: .* nccl@nccl.serving=ring_ll or nccl@nccl.extraction=ring_ll"),
        ("+nccl=ring_ll", "+nccl=ring_ll: .* nccl@nccl.serving=ring_ll or nccl@nccl.extraction=ring_ll"),
        ("experiment=mine", "experiment/mine.yaml: optim.lrr: no such key; did you mean optim.lr?"),
    ],
)
def test_another_way_to_choose_is_told_the_right_one(
    conf: Path, given: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begins, _, ends = says.partition(".*")
    told = said(conf, given, monkeypatch=monkeypatch, capsys=capsys).strip()
    assert told.startswith(begins)
    assert told.endswith(ends)


@pytest.mark.parametrize("profile", ["unclosed", "latin", "listed"])
def test_in_a_sweep_too(conf: Path, profile: str) -> None:
    given = ["--config-dir", str(conf), *ASKED, f"nccl@nccl.serving=default,{profile}"]
    for more in ([], ["layers.boundaries=[1,2],[2,3]"]):
        code, output = run(["-m", *given, *more], conf)
        assert code == 2, output
        assert f"nccl/{profile}.yaml" in output
        assert "Traceback" not in output
        assert "Warning" not in output
