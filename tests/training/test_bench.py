"""bench/train.py at a tiny shape on the CPU: it is run on machines where a mistake in it costs more than here."""

import sys
from pathlib import Path
from typing import Any

import pytest
from bench import train
from bench.peers import stand_ins

TINY = ["train.py", "--tiny", "--device", "cpu", "--only", "eagle3", "--steps", "1", "--epoch", "1"]


def test_it_prints_a_figure_for_each_case_and_compares_with_plainer_forms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*TINY, "half", "real", "--check"])
    train.main()
    said = capsys.readouterr().out
    assert said.count("tokens/s") == 2
    assert said.count("gradients without flash: loss") == 2


def test_what_fails_is_told_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, calls = train.measure, []

    def measure(*args: Any) -> Any:
        calls.append(args)
        if len(calls) < 3:
            raise RuntimeError("no such kernel")
        return whole(*args)

    monkeypatch.setattr(train, "measure", measure)
    monkeypatch.setattr(sys, "argv", [*TINY, "full", "half"])
    train.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert lines[0].startswith("full  eagle3 failed: RuntimeError: no such kernel")
    assert lines[1].startswith("full  eagle3 without compile failed")
    assert lines[2].startswith("full  eagle3 without flash")
    assert "tokens/s" in lines[2]
    assert lines[3].startswith("half  eagle3  ")


def test_a_folder_on_the_path_is_not_taken_for_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(stand_ins, "NAMES", ("only_a_folder", "only_a_folder.part"))
    try:
        assert stand_ins.provide() == ["only_a_folder"]
        assert sys.modules["only_a_folder.part"].anything is stand_ins.NeverCalled
    finally:
        for name in ("only_a_folder", "only_a_folder.part"):
            sys.modules.pop(name, None)
