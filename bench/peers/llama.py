"""A drafter's RoPE in the words of a transformers config."""

from typing import Any

from eagle3.drafter.shape import DrafterShape


def rope_parameters(shape: DrafterShape) -> dict[str, Any]:
    """The keys of transformers 5's `rope_parameters`."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    scaling = shape.rope_scaling
    if scaling is None:
        return found
    found.update(rope_type=scaling.type, factor=scaling.factor)
    if scaling.type == "llama3":
        found.update(low_freq_factor=scaling.low_freq_factor, high_freq_factor=scaling.high_freq_factor)
    if scaling.type == "yarn":
        found.update(beta_fast=scaling.beta_fast, beta_slow=scaling.beta_slow)
        found.update(mscale=1.0, mscale_all_dim=0.0)  # the default, which SpecForge does not have by itself
    if scaling.type != "linear":
        found["original_max_position_embeddings"] = scaling.original_max_position
    return found


def llama_config(shape: DrafterShape, **more: Any) -> Any:
    """A transformers LlamaConfig of one such layer."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        rms_norm_eps=shape.rms_norm_eps,
        max_position_embeddings=shape.context_length,
        rope_parameters=rope_parameters(shape),
        attention_bias=shape.attention_bias,
        pad_token_id=None,
        tie_word_embeddings=False,
        **more,
    )
