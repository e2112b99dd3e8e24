"""`eagle3 inspect` and `eagle3 verify` of hidden states that are still being made, and of exports."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.speaking import spoken
from tests.data.exchange_cases import LENGTHS, Silent, back, there, write_states, write_target
from tests.data.small_datasets import SHAPE, prompts_of, write

from eagle3.data.layout import ShardLayout
from eagle3.data.ledger import BASE_ID
from eagle3.data.manifest import Manifest
from eagle3.data.shards import HiddenStates
from eagle3.target.info import TargetInfo

TINY = 12 * SHAPE.token_bytes / (1 << 30)


def half_done(folder: Path) -> Manifest:
    """Three shards of 2, 1 and 2 sequences, as an extraction that was stopped leaves them: one is finished, the second
    is committed and not finished, of the third one sequence is there."""
    lengths = [5, 6, 9, 4, 7]
    manifest = write(folder, lengths, TINY)
    ids = prompts_of(lengths).sample_ids.tolist()
    for shard in manifest.shards[1:]:
        (folder / shard.file).rename(folder / f"{shard.file}.partial")
    manifest.replace(manifest.shards[:1])
    manifest.complete = False
    manifest.save(folder)
    (folder / "work").mkdir()
    entries = [(ids[0], 5, None), (ids[1], 6, None), (ids[2], 9, None), (ids[3], 4, "nan"), (ids[4], 7, None)]
    entries += [(ids[4], 7, None), (BASE_ID, 9, None)]  # committed by two servers; a sequence of the proof
    lines = [json.dumps({"id": i, "length": n, "crc": [0, 0, 0], "bad": bad}) for i, n, bad in entries]
    (folder / "work" / "ledger-7-8.jsonl").write_text("\n".join(lines) + '\n{"id": 9, "len')
    (folder / "work" / "placement.json").write_text("{}")
    return manifest


def test_a_half_done_extraction_counts_what_is_committed(tmp_path, capsys):
    half_done(tmp_path / "d")
    code, out, _ = spoken(capsys, "inspect", str(tmp_path / "d"))
    assert code == 0
    assert "not complete: 4 of 5 sequences and 27 of 31 tokens are committed; the same command continues" in out
    assert "2 of these sequences, 16 tokens, are in shards that are not finished (1 of 3 shards are)" in out
    code, out, _ = spoken(capsys, "verify", str(tmp_path / "d"))
    assert code == 1
    assert "it is not complete: finished shards hold 2 of 5 sequences. The same command continues" in out


def test_damage_comes_before_what_is_not_finished(tmp_path, capsys):
    manifest = half_done(tmp_path / "d")
    layout: ShardLayout = manifest.layout(manifest.shards[0])
    with (tmp_path / "d" / manifest.shards[0].file).open("r+b") as file:
        file.seek(layout.rows("final", 2, 1)[0])
        file.write(b"\x7f\x01")
    code, out, _ = spoken(capsys, "verify", str(tmp_path / "d"))
    assert (code, len(out.splitlines())) == (1, 1)
    assert "sequence 100, final" in out


def test_an_extraction_before_its_first_proof_is_known(tmp_path, capsys):
    half_done(tmp_path / "d")
    (tmp_path / "d" / "manifest.json").unlink()
    code, out, _ = spoken(capsys, "inspect", str(tmp_path / "d"))
    assert code == 0
    assert "only begun" in out
    assert "4 sequences are committed" in out
    code, _, err = spoken(capsys, "verify", str(tmp_path / "d"))
    assert code == 2
    assert "nothing to verify" in err


# -- imports and exports ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetInfo:
    return write_target(tmp_path_factory.mktemp("target") / "t")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, target: TargetInfo) -> HiddenStates:
    return write_states(tmp_path_factory.mktemp("own") / "a dataset", target, [1, 3, 4], LENGTHS)


class Stopped(Silent):
    def __init__(self, at: int, states: bool) -> None:
        super().__init__()
        self.at, self.states = at, states

    def progress(self, done: float, total: float, **fields: Any) -> None:
        if done >= self.at and ("gb_per_s" in fields) == self.states:
            raise KeyboardInterrupt


def test_an_unfinished_import(tmp_path, capsys, monkeypatch, target, own):
    monkeypatch.setattr("eagle3.data.exchange.pace.PERIOD_S", 0.0)
    foreign, out = there(own, tmp_path / "there", "specforge"), tmp_path / "back"
    with pytest.raises(KeyboardInterrupt):
        back(foreign, out, "specforge", [1, 3], target, reporter=Stopped(3, states=False))
    code, text, _ = spoken(capsys, "inspect", str(out))
    assert code == 0
    assert f"imported from {foreign}, in the format specforge" in text
    assert "the token ids are read first" in text
    assert spoken(capsys, "verify", str(out))[0] == 2
    with pytest.raises(KeyboardInterrupt):
        back(foreign, out, "specforge", [1, 3], target, reporter=Stopped(3, states=True))
    code, text, _ = spoken(capsys, "inspect", str(out))
    assert code == 0
    assert "not complete: 3 of 6 sequences and 18 of 43 tokens are committed" in text
    code, text, _ = spoken(capsys, "verify", str(out))
    assert code == 1
    assert "it is not complete" in text


@pytest.mark.parametrize("form", ["specforge", "speculators", "speculators-v1"])
def test_an_export(tmp_path, capsys, own, form):
    out = there(own, tmp_path / "an export", form)
    code, text, _ = spoken(capsys, "inspect", str(out))
    assert code == 0
    last = "after" if form == "specforge" else "before"
    for says in (
        "hidden states exported for another project",
        f"{form}, with the last state from {last} the final norm",
        str(own.folder),
        "6 sequences, a file each",
        "boundaries 1, 3",
        "finished",
    ):
        assert says in text
    (command,) = [line.split("  ")[-1].strip() for line in text.splitlines() if "eagle3 verify" in line]
    assert shlex.split(command) == ["eagle3", "verify", str(out)]
    code, text, _ = spoken(capsys, *shlex.split(command)[1:])
    assert code == 0
    assert "checked: every file is there and whole" in text
    assert ("not checked: whether the states are the dataset's: speculators has no checksums" in text) == (
        form == "speculators"
    )
    file = next(path for path in sorted(out.rglob("*")) if path.suffix in (".ckpt", ".pt", ".safetensors"))
    file.unlink()
    code, text, _ = spoken(capsys, "verify", str(out))
    assert code == 1
    assert f"{file} is not there" in text
    assert "5 of 6 sequences" in spoken(capsys, "inspect", str(out))[1]


def test_odd_files_of_other_kinds_are_no_traceback(tmp_path, capsys):
    for name, text in (("eagle3-export.json", '{"boundaries": 3}'), ("prepare.json", '{"counts": [1]}')):
        shutil.rmtree(tmp_path / "odd", ignore_errors=True)
        (tmp_path / "odd").mkdir()
        (tmp_path / "odd" / name).write_text(text)
        code, _, err = spoken(capsys, "inspect", str(tmp_path / "odd"))
        assert code == 1
        assert "a file there is not as eagle3 writes it" in err
