"""A model is described from config.json and headers alone, and what does not fit is said with its remedy."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.target.models import LLAMA, matrix, write_llama, write_model

from eagle3.config.schema import ShapeConfig
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.target import load_embedding, load_lm_head, read_info
from eagle3.target.info import check_shape


def test_llama(tmp_path: Path) -> None:
    info = read_info(write_llama(tmp_path / "small"))
    assert info.name == "small"
    assert info.source == "local"
    assert (info.hidden_size, info.num_layers, info.vocab_size, info.context_length) == (8, 4, 32, 256)
    assert (info.intermediate_size, info.num_heads, info.num_kv_heads, info.head_dim) == (24, 4, 2, 2)
    assert (info.rope_theta, info.rms_norm_eps) == (5e5, 1e-5)
    assert (info.text_prefix, info.tied) == ("", False)
    assert torch.equal(load_embedding(info), torch.from_numpy(matrix(32, 8)))
    assert torch.equal(load_lm_head(info), torch.from_numpy(matrix(32, 8, seed=1)))
    assert load_lm_head(info).dtype == torch.float16


def test_older_config_and_defaults(tmp_path: Path) -> None:
    config = {key: value for key, value in LLAMA.items() if key not in ("rope_parameters", "num_key_value_heads")}
    tensors = {"model.embed_tokens.weight": matrix(32, 8), "lm_head.weight": matrix(32, 8)}
    info = read_info(
        write_model(tmp_path, {**config, "rope_theta": 1e6, "head_dim": 16}, {"model.safetensors": tensors})
    )
    assert (info.rope_theta, info.num_kv_heads, info.head_dim) == (1e6, 4, 16)


def test_figures_that_the_config_leaves_to_the_class(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 32}
    tensors = {"model.embed_tokens.weight": matrix(32, 64), "lm_head.weight": matrix(32, 64)}
    info = read_info(write_model(tmp_path, config, {"model.safetensors": tensors}))
    assert (info.num_heads, info.context_length) == (32, 2048)


def test_config_that_does_not_say_whether_the_head_is_tied(tmp_path: Path) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    tensors = {"model.embed_tokens.weight": matrix(32, 8)}
    assert read_info(write_model(tmp_path / "a", config, {"model.safetensors": tensors})).tied
    tensors["lm_head.weight"] = matrix(32, 8)
    assert not read_info(write_model(tmp_path / "b", config, {"model.safetensors": tensors})).tied


def test_tied(tmp_path: Path) -> None:
    info = read_info(write_llama(tmp_path, tie_word_embeddings=True))
    assert info.tied
    assert torch.equal(load_lm_head(info), load_embedding(info))


def test_padded_rows_are_cut(tmp_path: Path) -> None:
    info = read_info(write_llama(tmp_path, vocab_size=30))
    assert load_embedding(info).shape == (30, 8)
    assert load_lm_head(info).shape == (30, 8)


DEEPSEEK = {
    **{key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"},
    "model_type": "deepseek_v3",
    "kv_lora_rank": 4,
    "v_head_dim": 6,
}
WRAPPER = {"model_type": "kimi_k25", "tie_word_embeddings": False, "text_config": DEEPSEEK}


def write_wrapper(folder: Path) -> Path:
    shards = {
        "model-1.safetensors": {
            "language_model.model.embed_tokens.weight": matrix(32, 8),
            "vision_tower.patch_embed.weight": matrix(4, 4),
        },
        "model-2.safetensors": {
            "language_model.model.layers.4.embed_tokens.weight": matrix(32, 8, seed=7),  # of a prediction layer
            "language_model.lm_head.weight": matrix(32, 8, seed=1),
        },
    }
    return write_model(folder, WRAPPER, shards)


@pytest.mark.parametrize("given", ["language_model.", ""])
def test_text_model_inside_a_wrapper(tmp_path: Path, given: str) -> None:
    info = read_info(write_wrapper(tmp_path), text_prefix=given)
    assert info.text_prefix == "language_model."
    assert (info.hidden_size, info.num_layers, info.head_dim, info.tied) == (8, 4, 6, False)
    assert torch.equal(load_embedding(info), torch.from_numpy(matrix(32, 8)))
    assert torch.equal(load_lm_head(info), torch.from_numpy(matrix(32, 8, seed=1)))


def test_wrong_prefix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"target\.text_prefix='model\.text\.'.*language_model\.model\.embed_tokens"):
        read_info(write_wrapper(tmp_path), text_prefix="model.text.")


def test_no_torch_for_the_figures(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from eagle3.target import read_info;"
        f"read_info(Path({str(write_llama(tmp_path))!r}));"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_fingerprint_follows_config_and_weights(tmp_path: Path) -> None:
    first = read_info(write_llama(tmp_path / "a")).fingerprint
    assert read_info(write_llama(tmp_path / "b")).fingerprint == first, "not the folder's name"
    assert read_info(write_llama(tmp_path / "c", rms_norm_eps=1e-6)).fingerprint != first
    (tmp_path / "b" / "README.md").write_text("no part of it")
    assert read_info(tmp_path / "b").fingerprint == first


def test_shape_is_checked(tmp_path: Path) -> None:
    info = read_info(write_llama(tmp_path))
    check_shape(info, None)
    check_shape(info, ShapeConfig(8, 4, 32, 256))
    with pytest.raises(ConfigError, match=r"target\.shape\.num_layers=5.*has 4.*target\.shape\.num_layers=4"):
        check_shape(info, ShapeConfig(8, 5, 32, 256))


def test_no_folder_and_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        read_info(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"no config\.json"):
        read_info(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_broken_config(tmp_path: Path, content: str) -> None:
    write_llama(tmp_path)
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(Eagle3Error, match="not a model's config"):
        read_info(tmp_path)


def test_not_a_text_model(tmp_path: Path) -> None:
    write_model(tmp_path, {"model_type": "unheard-of"}, {"model.safetensors": {"x": matrix(2, 2)}})
    with pytest.raises(Eagle3Error, match="no hidden_size, num_hidden_layers"):
        read_info(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(Eagle3Error, match=r"no \*\.safetensors"):
        read_info(tmp_path)


def test_truncated_and_missing_weights(tmp_path: Path) -> None:
    folder = write_wrapper(tmp_path)
    file = folder / "model-2.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(Eagle3Error, match=r"model-2\.safetensors.*truncated"):
        read_info(folder)
    file.write_bytes(whole[:5])
    with pytest.raises(Eagle3Error, match="not a readable safetensors"):
        read_info(folder)
    file.unlink()
    with pytest.raises(Eagle3Error, match=r"model-2\.safetensors.*missing"):
        read_info(folder)


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    with pytest.raises(Eagle3Error, match="do not belong together"):
        read_info(write_llama(tmp_path, vocab_size=33))


def test_head_is_missing(tmp_path: Path) -> None:
    write_model(tmp_path, LLAMA, {"model.safetensors": {"model.embed_tokens.weight": matrix(32, 8)}})
    with pytest.raises(Eagle3Error, match=r"no lm_head\.weight"):
        read_info(tmp_path)


def test_vendors_second_copy_is_passed_over(tmp_path: Path) -> None:
    write_llama(tmp_path)
    first = read_info(tmp_path).fingerprint
    write_model(tmp_path / "other", LLAMA, {"consolidated.safetensors": {"x": np.zeros(3, np.float16)}})
    (tmp_path / "other" / "consolidated.safetensors").rename(tmp_path / "consolidated.safetensors")
    assert read_info(tmp_path).fingerprint == first
