# ruff: noqa: RUF001 - so are the bars in the names of DeepSeek's tokens
"""Chat templates in the styles that models have, each with a tokenizer trained on the spot; and the slow reference."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token }}[INST] {{ m['content'] | trim }} [/INST]"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}<｜User｜>{{ m['content'] }}"
    "{% else %}<｜Assistant｜>{{ m['content'].split('</think>')[-1] }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
QWEN3 = (  # what was thought is shown in the last turn only, and an empty thought where there was none
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{% set said = m['content'].split('</think>')[-1].lstrip('\n') %}"
    "<|im_start|>assistant\n{% if loop.last %}<think>\n"
    "{{ m['content'].split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m['content'] else '' }}"
    "\n</think>\n\n{% endif %}{{ said }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GLM = (  # no end of turn: the model stops by beginning the next one
    "[gMASK]{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PLAIN = (  # no special tokens at all
    "{% for m in messages %}{{ m['role'] | upper }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}\n"
    "{% else %}{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = {
    "chatml": ["<|im_start|>", "<|im_end|>"],
    "llama3": ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"],
    "llama2": ["<s>", "</s>"],
    "deepseek": [
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<think>",
        "</think>",
    ],
    "gemma": ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
    "qwen3": ["<|im_start|>", "<|im_end|>", "<think>", "</think>"],
    "glm": ["<eop>", "<|user|>", "<|assistant|>", "<|system|>", "[gMASK]"],
    "plain": ["<s>", "</s>"],
    "marked": ["<|im_start|>", "<|im_end|>"],
}
TEMPLATES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "llama2": LLAMA2,
    "deepseek": DEEPSEEK,
    "gemma": GEMMA,
    "qwen3": QWEN3,
    "glm": GLM,
    "plain": PLAIN,
    "marked": MARKED,
}
ENDS = {"glm": ["<|user|>", "<|system|>"], "gemma": ["<end_of_turn>"]}
"""Further tokens that end a turn: what generation_config.json lists beside the tokenizer's end of sequence."""
SAMPLE = (
    "The answer is 12 or 345.  Hello there, how are you?\n\n\nI am fine.\n- one\n- two\n"
    "  indented: user assistant system\n```python\ndef f(x):\n    return x * 2\n```\n"
    "Grüße, ça va? Привет, 你好世界。 🎉🎊 emoji\n"
)


@dataclass(frozen=True)
class Style:
    name: str
    tokenizer: Any
    template: str
    end_tokens: list[str]

    def render(self, messages: list[dict[str, str]], prompt: bool = False) -> str:
        return self.tokenizer.apply_chat_template(
            messages, chat_template=self.template, tokenize=False, add_generation_prompt=prompt
        )

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids


def make_style(name: str) -> Style:
    spm = name == "llama2"
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>" if spm else None))
    if spm:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
        alphabet: list[str] = []
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [*SPECIAL[name], *(["<unk>"] if spm else [])]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([SAMPLE] * 8, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1])
    return Style(name, fast, TEMPLATES[name], [special[1], *ENDS.get(name, [])])


def save_style(style: Style, folder: Path) -> None:
    style.tokenizer.chat_template = style.template
    style.tokenizer.save_pretrained(folder)


def reference_mask(style: Style, messages: list[dict[str, str]]) -> np.ndarray | None:
    """By tokenising every prefix again: quadratic, and with no idea of what a template is made of.

    A turn is what comes after the prefix with the generation prompt, up to the last end token of the prefix that holds
    the turn. None where a prefix's tokens do not begin those of the whole (a merge over the border): no reference then.
    """
    text = style.render(messages)
    ids = style.ids(text)
    ends = {style.tokenizer.convert_tokens_to_ids(token) for token in style.end_tokens}
    mask = np.zeros(len(ids), np.uint8)
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = style.render(messages[:i], prompt=True)
        if not text.startswith(before):
            before = style.render(messages[:i])
            following = style.render([*messages[:i], {"role": "assistant", "content": "X"}])
            before = following[: following.rindex("X")]
        after = style.render(messages[: i + 1])
        start, stop = len(style.ids(before)), len(style.ids(after))
        if ids[:start] != style.ids(before) or ids[:stop] != style.ids(after):
            return None
        while stop > start and ids[stop - 1] not in ends:
            stop -= 1
        mask[start:stop] = 1
    return mask


@cache
def style_of(name: str) -> Style:
    return make_style(name)


def chat(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


pieces = st.sampled_from(
    ["Hello", " ", "\n", "\n\n", "  ", "The answer is 42.", "12", "ça va?", "你好", "🎉", "👩\u200d👧", "é", "e\u0301",
     "\t", "user", "assistant", "```", "- one", "System:", "ASSISTANT: ", "[INST]", "{{", "%}", "<", "\u2028", "\xa0",
     "</s", "x"]
)  # fmt: skip
content = st.lists(pieces, max_size=8).map("".join)
