"""The prepare artifact: what is in it, what was left out and why, and the split."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.data.chat_templates import make_style, save_style

from eagle3.config.provenance import file_sha256
from eagle3.config.schema import Config, DatasetConfig, ServerConfig, ServerFlags, TargetConfig
from eagle3.data.prepare import run_prepare
from eagle3.data.split import held_out_sides
from eagle3.errors import DataError
from eagle3.server.flags import RESERVED_TOKENS
from eagle3.target.info import TargetInfo


class Recorder:
    """Keeps what a stage reports."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.steps: list[tuple[float, float]] = []
        self.notes: list[str] = []

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self.values |= values

    def progress(self, done: float, total: float, **fields: Any) -> None:
        self.steps.append((done, total))

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetInfo:
    folder = tmp_path_factory.mktemp("model")
    save_style(make_style("gemma"), folder)
    return TargetInfo(
        name="small",
        path=folder,
        source="local",
        hidden_size=8,
        num_layers=4,
        vocab_size=700,
        context_length=400,
        intermediate_size=16,
        num_heads=2,
        num_kv_heads=2,
        head_dim=4,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        text_prefix="",
        tied=False,
        embedding_key="model.embed_tokens.weight",
        lm_head_key="lm_head.weight",
        fingerprint="0" * 64,
    )


def prepare(
    target: TargetInfo, rows: list[Any], out: Path, flags: ServerFlags | None = None, **options: Any
) -> tuple[dict[str, Any], Recorder]:
    file = out / "rows.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    cfg = Config(
        name="test",
        target=TargetConfig("small", str(target.path)),
        dataset=DatasetConfig("test", str(file), **{"bad_rows": 0.9, **options}),
        server=ServerConfig(flags=flags or ServerFlags()),
    )
    reporter = Recorder()
    return run_prepare(cfg, target, out, reporter, out), reporter


def pairs(count: int, words: int = 3) -> list[dict[str, str]]:
    return [{"prompt": f"question {i}", "response": f"answer {i} " * words} for i in range(count)]


def test_artifact(target: TargetInfo, tmp_path: Path) -> None:
    turns = [{"role": role, "content": f"{role} {i}"} for i in range(3) for role in ("user", "assistant")]
    rows = [*pairs(30), "{broken", {"messages": turns}, {"prompt": "unanswered"}, {"prompt": "empty", "response": ""}]
    summary, reporter = prepare(target, rows, tmp_path)
    tensors = load_file(tmp_path / "prompts.safetensors")
    assert {name: str(t.dtype) for name, t in tensors.items()} == {
        "input_ids": "int32",
        "loss_mask": "uint8",
        "offsets": "int64",
        "sample_ids": "int64",
        "held_out": "uint8",
    }
    offsets, mask = tensors["offsets"], tensors["loss_mask"]
    assert tensors["sample_ids"].tolist() == [*range(30), 31, 33]
    assert len(offsets) == 33
    assert offsets[0] == 0
    assert offsets[-1] == len(tensors["input_ids"]) == len(mask) == summary["tokens"]
    style = make_style("gemma")
    ids = tensors["input_ids"][offsets[30] : offsets[31]]
    assert ids.tolist() == style.ids(style.render(turns))
    assert style.tokenizer.decode(ids[mask[offsets[30] : offsets[31]] == 1]) == (
        "assistant 0<end_of_turn>assistant 1<end_of_turn>assistant 2<end_of_turn>"
    )
    held = tensors["held_out"]
    assert summary["counts"] == {
        "conversations": 34,
        "kept": 32,
        "truncated": 0,
        "skipped": {"not JSON": 1, "no response": 1},
    }
    assert [problem["line"] for problem in summary["problems"]] == ["rows.jsonl:31", "rows.jsonl:33"]
    lengths = np.diff(offsets)
    assert summary["held_out"] == {"sequences": int(held.sum()), "tokens": int(lengths[held == 1].sum())}
    assert summary["response_tokens"] == mask.sum()
    assert summary["longest"] == lengths.max()
    assert summary["target"] == "small"
    assert summary["template_sha256"] == hashlib.sha256(style.template.encode()).hexdigest()
    written = json.loads((tmp_path / "prepare.json").read_text())
    assert written.pop("prompts_sha256") == file_sha256([tmp_path / "prompts.safetensors"])
    assert written == summary
    assert reporter.values["prepare/tokens"] == summary["tokens"]
    assert reporter.values["prepare/conversations"] == 34
    assert reporter.steps[-1] == (100, 100)
    assert any("left out: 1 not JSON, 1 no response" in note for note in reporter.notes)


@pytest.mark.parametrize("limit", [2, 7, 40])
def test_a_limit_ends_at_the_whole_too(target: TargetInfo, tmp_path: Path, limit: int) -> None:
    """Also where most of the file is not read."""
    summary, reporter = prepare(target, pairs(30), tmp_path, limit=limit)
    assert summary["counts"]["kept"] == min(limit, 30)
    assert reporter.steps[-1] == (100, 100)


def test_same_input_same_bytes(target: TargetInfo, tmp_path: Path) -> None:
    prepare(target, pairs(12), tmp_path)
    first = (tmp_path / "prompts.safetensors").read_bytes(), (tmp_path / "prepare.json").read_bytes()
    prepare(target, pairs(12), tmp_path)
    assert ((tmp_path / "prompts.safetensors").read_bytes(), (tmp_path / "prepare.json").read_bytes()) == first


@pytest.mark.parametrize(("on_long", "kept", "truncated"), [("truncate", 4, 1), ("skip", 3, 0)])
def test_long_sequences(target: TargetInfo, tmp_path: Path, on_long: str, kept: int, truncated: int) -> None:
    rows = [*pairs(3), {"prompt": "long", "response": "word " * 200}, {"prompt": "word " * 200, "response": "late"}]
    summary, reporter = prepare(target, rows, tmp_path, max_length=60, on_long=on_long)
    assert summary["counts"]["kept"] == kept
    assert summary["counts"]["truncated"] == truncated
    assert summary["longest"] <= 60
    if on_long == "skip":
        assert summary["counts"]["skipped"] == {"too long": 2}
    else:
        assert summary["counts"]["skipped"] == {"no response token": 1}
        assert "hold no response" in summary["problems"][0]["why"]
        assert any("1 cut at 60 tokens" in note for note in reporter.notes)


@pytest.mark.parametrize("context", [None, 300])
@pytest.mark.parametrize(("on_long", "counts"), [("truncate", (3, 1, {})), ("skip", (2, 0, {"too long": 1}))])
def test_no_longer_than_the_context(
    target: TargetInfo, tmp_path: Path, on_long: str, counts: tuple[int, int, dict[str, int]], context: int | None
) -> None:
    """The target's, or the one that the server is given by a flag: never silently, as the configuration says."""
    flags = ServerFlags(extraction={"context_length": context} if context else {})
    rows = [*pairs(2), {"prompt": "long", "response": "word " * 900}]
    summary, reporter = prepare(target, rows, tmp_path, flags, max_length=5000, on_long=on_long)
    limit = (context or target.context_length) - RESERVED_TOKENS
    assert summary["length_limit"] == limit
    assert (summary["longest"] == limit) == (on_long == "truncate")
    told = summary["counts"]
    assert (told["kept"], told["truncated"], told["skipped"]) == counts
    expected = f"1 cut at {limit} tokens" if on_long == "truncate" else "left out: 1 too long"
    assert any(expected in note for note in reporter.notes)


def test_ids_of_rows_may_repeat(target: TargetInfo, tmp_path: Path) -> None:
    """A sequence is known by its place in the source; the same conversation once more is left out and counted."""
    rows = [{**row, "id": 7} for row in (*pairs(4), pairs(1)[0])]
    summary, _ = prepare(target, rows, tmp_path)
    assert load_file(tmp_path / "prompts.safetensors")["sample_ids"].tolist() == [0, 1, 2, 3]
    assert summary["counts"]["skipped"] == {"duplicate": 1}


def test_conversations_that_the_template_refuses(target: TargetInfo, tmp_path: Path) -> None:
    twice = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"},
                          {"role": "assistant", "content": "c"}]}  # fmt: skip
    summary, _ = prepare(target, [twice, *pairs(5)], tmp_path)
    assert summary["counts"]["skipped"] == {"template can't be masked": 1}
    assert "must alternate" in summary["problems"][0]["why"]
    with pytest.raises(DataError, match=r"(?s)1 of 3 conversations.*\{% generation %\}.*target\.chat_template"):
        prepare(target, [twice, *pairs(2)], tmp_path, bad_rows=0.1)


def test_nothing_left(target: TargetInfo, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)no conversation of 2 .*2 no response.*rows\.jsonl:1: .*regenerate"):
        prepare(target, [{"prompt": "a"}, {"prompt": "b"}], tmp_path)
    with pytest.raises(DataError, match="can't be split"):
        prepare(target, pairs(1), tmp_path)
    assert not (tmp_path / "prompts.safetensors").exists()


def test_split_does_not_move_when_data_is_added() -> None:
    keys = [hashlib.sha256(str(i).encode()).digest() for i in range(2000)]
    sides = held_out_sides(keys[:1000], 0.1, seed=0)
    more = held_out_sides(keys[500:] + keys[:500], 0.1, seed=0)
    assert more[1500:].tolist() == sides[:500].tolist()
    assert more[:500].tolist() == sides[500:].tolist()
    assert 60 < sides.sum() < 140
    assert held_out_sides(keys[:1000], 0.1, seed=1).tolist() != sides.tolist()


def test_split_keeps_a_prompt_on_one_side() -> None:
    keys = [hashlib.sha256(str(i % 50).encode()).digest() for i in range(200)]
    sides = held_out_sides(keys, 0.3, seed=0)
    assert (sides.reshape(4, 50) == sides[:50]).all()


@pytest.mark.parametrize("share", [1e-9, 0.1, 0.999999999])
@pytest.mark.parametrize("keys", [[b"a", b"b"], [b"a", b"a"], [b"a", b"b", b"c"]])
def test_both_sides_get_something(keys: list[bytes], share: float) -> None:
    assert 0 < held_out_sides(keys, share, seed=0).sum() < len(keys)
