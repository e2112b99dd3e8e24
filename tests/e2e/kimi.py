"""A tiny random Kimi-K2.5: the tiny DeepSeek-V3 inside a multimodal wrapper, as the published folder has it."""

import json
from pathlib import Path

from safetensors.torch import save_file
from tests.e2e.chat_model import write_tokenizer
from tests.e2e.models import VOCAB, build, tiny_deepseek
from transformers import PreTrainedModel

PREFIX = "language_model."
PROCESSOR = '''
"""What SGLang asks of Kimi's own processor, which the published folder brings along: the sizes of image patches."""

from transformers import AutoTokenizer
from transformers.processing_utils import ProcessorMixin


class MediaProcessor:
    media_proc_cfg = {
        "patch_size": 14,
        "merge_kernel_size": 2,
        "in_patch_limit": 64,
        "patch_limit_on_one_side": 8,
        "fixed_output_tokens": None,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


class KimiK25Processor(ProcessorMixin):
    attributes = ["tokenizer"]
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer=None, **kwargs):
        super().__init__(tokenizer)
        self.image_processor = self.media_processor = MediaProcessor()
'''
VISION = {
    "model_type": "kimi_k25",
    "patch_size": 14,
    "init_pos_emb_height": 4,
    "init_pos_emb_width": 4,
    "init_pos_emb_time": 4,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "merge_kernel_size": [2, 2],
    "vt_hidden_size": 32,
    "vt_num_attention_heads": 2,
    "vt_num_hidden_layers": 1,
    "vt_intermediate_size": 64,
    "text_hidden_size": 64,
}


def build_kimi(folder: Path) -> PreTrainedModel:
    """Writes the folder; gives the text model, transformers' DeepSeek-V3 on the same weights."""
    text = build(tiny_deepseek(), folder)
    save_file(
        {f"{PREFIX}{name}": tensor.contiguous() for name, tensor in text.state_dict().items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    text_config = json.loads((folder / "config.json").read_text())
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "auto_map": {"AutoProcessor": "kimi_k25_processor.KimiK25Processor"},
        "dtype": "bfloat16",
        "media_placeholder_token_id": VOCAB - 2,
        "pad_token_id": 0,
        "text_config": text_config,
        "vision_config": VISION,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "kimi_k25_processor.py").write_text(PROCESSOR)
    (folder / "preprocessor_config.json").write_text(json.dumps({"auto_map": config["auto_map"]}))
    write_tokenizer(folder)
    return text
