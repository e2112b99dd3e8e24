"""A target's tokenizer on conversations: where its tokens stand in the text, its template, and what does not fit."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.chat_templates import CHATML, QWEN3, chat, content, save_style, style_of
from transformers import PreTrainedTokenizerFast

from eagle3.config.schema import TargetConfig
from eagle3.data.offsets import OffsetEncoder
from eagle3.data.tokenize import ConversationTokenizer, Tokenized, tokenizer_sha256
from eagle3.data.turns import UnmaskableError
from eagle3.errors import ConfigError, DataError, Eagle3Error


class PythonTokenizer:
    """A byte-level tokenizer without offsets, as the tiktoken ones are that models bring along."""

    is_fast = False

    def __init__(self, inner: PreTrainedTokenizerFast, lossy: bool = False) -> None:
        self.inner = inner
        self.added_tokens_decoder = inner.added_tokens_decoder
        self.lossy = lossy

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.inner(text.lower() if self.lossy else text, add_special_tokens=add_special_tokens).input_ids

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return self.inner.convert_ids_to_tokens(ids)


@given(contents=st.lists(content, min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_places_of_tokens_without_offsets(contents: list[str]) -> None:
    style = style_of("chatml")
    text = style.render(chat(*contents))
    [(ids, starts)], [(ids2, starts2)] = (
        OffsetEncoder(style.tokenizer)([text]),
        OffsetEncoder(PythonTokenizer(style.tokenizer))([text]),
    )
    assert ids.tolist() == ids2.tolist()
    assert starts.tolist() == starts2.tolist()


def test_tokenizer_that_cannot_be_placed() -> None:
    with pytest.raises(DataError, match="neither a fast one nor byte-level"):
        OffsetEncoder(PythonTokenizer(style_of("chatml").tokenizer, lossy=True))(["Hello"])


def target(folder: Path, vocab_size: int = 10_000) -> Any:
    return SimpleNamespace(path=folder, vocab_size=vocab_size)


def test_conversation_tokenizer(tmp_path: Path) -> None:
    save_style(style_of("glm"), tmp_path)
    glm = style_of("glm").tokenizer
    stops = glm.convert_tokens_to_ids(["<eop>", "<|user|>"])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    tokenizer = ConversationTokenizer(target(tmp_path), TargetConfig("t", str(tmp_path)))
    assert sorted(tokenizer.end_ids) == stops
    good, bad = tokenizer([chat("Hi", "Hello", "More?", "fine"), [{"role": "assistant", "content": "  "}]])
    assert isinstance(good, Tokenized)
    assert good.input_ids.dtype == np.int32
    assert good.loss_mask.dtype == np.uint8
    assert isinstance(bad, Tokenized | UnmaskableError)
    prompt = tokenizer.prompt_ids(chat("Hi"))
    assert glm.decode(prompt) == "[gMASK]<|user|>\nHi<|assistant|>\n"
    assert good.input_ids[: len(prompt)].tolist() == prompt
    assert tokenizer.answer([*glm("ça 🎉", add_special_tokens=False).input_ids, stops[1]]) == "ça 🎉"
    assert tokenizer.answer(glm("ça 🎉", add_special_tokens=False).input_ids[:-1]) == "ça "


def test_configured_template(tmp_path: Path) -> None:
    save_style(style_of("qwen3"), tmp_path)
    file = tmp_path / "mine.jinja"
    file.write_text(CHATML)
    own = ConversationTokenizer(target(tmp_path), TargetConfig("t", str(tmp_path)))
    mine = ConversationTokenizer(target(tmp_path), TargetConfig("t", str(tmp_path), chat_template=str(file)))
    assert (own.template, mine.template) == (QWEN3, CHATML)
    assert own.template_sha256 != mine.template_sha256
    file.write_text("{% for %}")
    with pytest.raises(ConfigError, match=r"target\.chat_template: not Jinja, line 1"):
        ConversationTokenizer(target(tmp_path), TargetConfig("t", str(tmp_path), chat_template=str(file)))
    with pytest.raises(ConfigError, match=r"target\.chat_template=.*can't be read"):
        ConversationTokenizer(target(tmp_path), TargetConfig("t", str(tmp_path), chat_template=str(tmp_path / "no")))


def test_no_template(tmp_path: Path) -> None:
    plain = PreTrainedTokenizerFast(tokenizer_object=style_of("plain").tokenizer.backend_tokenizer)
    plain.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has no chat template"):
        ConversationTokenizer(target(tmp_path), TargetConfig("t", str(tmp_path)))


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(Eagle3Error, match="tokenizer can't be loaded"):
        ConversationTokenizer(target(tmp_path), TargetConfig("t", str(tmp_path)))


def test_tokenizer_of_another_model(tmp_path: Path) -> None:
    save_style(style_of("chatml"), tmp_path)
    tokenizer = ConversationTokenizer(target(tmp_path, vocab_size=100), TargetConfig("t", str(tmp_path)))
    with pytest.raises(Eagle3Error, match="do not belong together"):
        tokenizer([chat("Hi", "Hello there 🎉")])


def test_tokenizer_hash_follows_the_files(tmp_path: Path) -> None:
    save_style(style_of("chatml"), tmp_path)
    first = tokenizer_sha256(tmp_path)
    (tmp_path / "README.md").write_text("no part of it")
    assert tokenizer_sha256(tmp_path) == first
    (tmp_path / "added_tokens.json").write_text("{}")
    assert tokenizer_sha256(tmp_path) != first
