"""Tiny random models, built in seconds: real architectures, no download."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig, PreTrainedModel, Qwen3Config

VOCAB = 512


def tiny_llama() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )


def tiny_qwen3() -> Qwen3Config:
    """Heads that are wider than hidden_size / heads, as in the small Qwen3 models; q and k are normed in each head."""
    return Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )


def tiny_deepseek() -> DeepseekV3Config:
    """SGLang needs `rope_scaling`, `moe_layer_freq`, `topk_method` and `scoring_func` spelled out."""
    moe: dict[str, Any] = {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    return DeepseekV3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=1,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=16,
        routed_scaling_factor=1.0,
        max_position_embeddings=2048,
        rope_scaling={
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        dtype="bfloat16",
        **moe,
    )


def build(config: Any, folder: Path, seed: int = 0) -> PreTrainedModel:
    """Writes config.json and model.safetensors; gives the model in bfloat16 for the comparison."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    # The default initialisation gives states so small that bf16 noise would hide a wrong boundary.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, 0.3 if "embed" in name else 0.12)
            elif "norm" in name:  # with weights of one, a norm applied twice would be seen by nobody
                parameter.normal_(1.0, 0.2)
    model.save_pretrained(folder)
    return model
