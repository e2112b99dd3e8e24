"""`prepare.regenerate=true` through a real server: the target's own greedy answers, also over an interruption."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.data.test_prepare import Recorder
from tests.e2e.chat_model import write_chat_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle3.config import load
from eagle3.config.schema import Config, DatasetConfig, PrepareConfig, ServerConfig, ServerFlags, TargetConfig
from eagle3.data.prepare import run_prepare
from eagle3.data.prompts import Tally, read_conversations
from eagle3.errors import DataError
from eagle3.target import read_info

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]  # a server starts twice, on a busy machine slowly
NEW_TOKENS = 24
CHILD = """
import json, sys
from pathlib import Path
from eagle3.config import load
from eagle3.data.prepare import run_prepare
from eagle3.metrics import JsonlReporter
from eagle3.target import read_info
cfg, out = load(json.loads(sys.argv[1])), Path(sys.argv[2])
run_prepare(cfg, read_info(Path(cfg.target.path), "tiny"), out, JsonlReporter(out / "metrics.jsonl"), out / "logs")
"""


def write_prompts(path: Path) -> None:
    rows: list[Any] = [{"id": f"row-{i}", "prompt": f"say barn {i} times"} for i in range(18)]
    rows[3] = {"messages": [{"role": "user", "content": "say dust"}, {"role": "assistant", "content": "not this"}]}
    rows[5] = {"id": "two", "messages": [
        {"role": "user", "content": "say fill"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "again"},
    ]}  # fmt: skip
    rows[7] = {"messages": [{"role": "system", "content": "nobody asks anything"}]}
    rows[9] = {"prompt": "much too long " * 100}
    path.write_text("{broken\n" + "".join(json.dumps(row) + "\n" for row in rows))


def config(folder: Path) -> Config:
    return Config(
        name="tiny",
        target=TargetConfig("tiny", str(folder / "model")),
        dataset=DatasetConfig("prompts", str(folder / "prompts.jsonl"), max_length=160, held_out=0.2),
        server=ServerConfig(device="cpu", concurrency=2, flags=ServerFlags(common={"max_total_tokens": 4096})),
        prepare=PrepareConfig(regenerate=True, max_new_tokens=NEW_TOKENS),
    )


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def kill_when_answering(cfg: Config, out: Path) -> None:
    """Runs it in a child that is killed without notice after some answers; waits until its server is gone."""
    out.mkdir()
    child = subprocess.Popen([sys.executable, "-c", CHILD, json.dumps(dataclasses.asdict(cfg)), str(out)])
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 500
    while len(lines(out / "answers.jsonl")) < 4:
        assert child.poll() is None, (out / "metrics.jsonl").read_text()
        assert time.monotonic() < deadline
        family = psutil.Process(child.pid).children(recursive=True)
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert family
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive, "the server goes with its client"


def test_answers_are_the_targets_own(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl")
    cfg, out = config(tmp_path), tmp_path / "out"
    assert load(dataclasses.asdict(cfg)) == cfg
    kill_when_answering(cfg, out)
    kept = lines(out / "answers.jsonl")
    with (out / "answers.jsonl").open("ab") as file:
        file.write(b'{"index": 1, "turn": 0, "key": "torn')

    reporter = Recorder()
    summary = run_prepare(cfg, read_info(tmp_path / "model", "tiny"), out, reporter, out / "logs")
    whole = lines(out / "answers.jsonl")
    assert whole[: len(kept)] == kept, "what was answered before is not asked again"
    rows = [json.loads(line) for line in whole]
    assert max(Counter((row["index"], row["turn"]) for row in rows).values()) == 1
    assert any("conversations are answered already" in note for note in reporter.notes)
    assert summary["counts"]["skipped"] == {"not JSON": 1, "nothing to answer": 1, "can't be asked": 1}
    assert summary["counts"]["kept"] == 16
    assert reporter.values["prepare/answers"] == 17

    made = [json.loads(line) for line in (out / "conversations.jsonl").read_text().splitlines()]
    assert [row["id"] for row in made][:5] == ["row-0", "row-1", "row-2", 4, "row-4"]
    assert [m["role"] for m in next(row for row in made if row["id"] == "two")["messages"]] == ["user", "assistant"] * 2
    assert all("not this" not in m["content"] for row in made for m in row["messages"])
    assert len(list(read_conversations(DatasetConfig("made", str(out / "conversations.jsonl")), Tally()))) == len(made)

    tensors = load_file(out / "prompts.safetensors")
    assert tensors["sample_ids"].tolist() == [1, 2, 3, 4, 5, 6, 7, 9, *range(11, 19)], "places in the source"
    assert_greedy(tmp_path / "model", made)


def assert_greedy(folder: Path, made: list[dict[str, Any]]) -> None:
    """Each first answer is how transformers goes on, up to where two tokens are as likely within bf16's noise."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    checked = 0
    for row in made:
        asked, answer = row["messages"][:1], row["messages"][1]["content"]
        prompt = tokenizer.apply_chat_template(asked, tokenize=True, add_generation_prompt=True, return_dict=False)
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "output_logits": True}
        found = model.generate(torch.tensor([prompt]), return_dict_in_generate=True, **options)
        best = torch.stack([logits[0].float().topk(2).values for logits in found.logits])
        unsure = ((best[:, 0] - best[:, 1]) < 0.15).nonzero()
        sure = int(unsure[0]) if len(unsure) else len(best)
        text = tokenizer.decode(found.sequences[0, len(prompt) :][:sure], skip_special_tokens=True)
        assert answer.startswith(text.rstrip("\ufffd")), row["id"]  # a character may be cut in two
        checked += sure
    assert checked > 0


def test_nothing_to_answer(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text('{"messages": [{"role": "system", "content": "Be kind."}]}\n')
    with pytest.raises(DataError, match="nothing to answer in 1 conversations"):
        run_prepare(config(tmp_path), read_info(tmp_path / "model"), tmp_path / "out", Recorder(), tmp_path)
