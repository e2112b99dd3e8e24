"""Run as a program: SGLang's own drafter class loads an exported folder and drafts as its worker would.

SGLang keeps its topology and configuration in the process, so this is a process of its own. All that is not SGLang's is
the attention over the KV cache, whose draft back-ends need a GPU: plain softmax attention over a cache held in a list.

    python sglang_drafter.py CASE...

A case is a folder with `drafter/` and `in.safetensors`; `out.safetensors` and `out.json` are put beside them.
"""

import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs
from torch import Tensor, nn


class CachedAttention(nn.Module):
    """What a draft back-end computes: the new queries over everything cached before and among them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.heads, self.kv, self.dim, self.scale = (
            layer.tp_q_head_num,
            layer.tp_k_head_num,
            layer.head_dim,
            layer.scaling,
        )
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def forward(self, q: Tensor, k: Tensor, v: Tensor, forward_batch: object) -> Tensor:
        self.keys.append(k.view(-1, self.kv, self.dim))
        self.values.append(v.view(-1, self.kv, self.dim))
        keys = torch.cat(self.keys).repeat_interleave(self.heads // self.kv, 1)
        values = torch.cat(self.values).repeat_interleave(self.heads // self.kv, 1)
        new = q.shape[0]
        logits = torch.einsum("qhd,khd->hqk", q.view(new, self.heads, self.dim), keys) * self.scale
        future = torch.ones(new, len(keys), dtype=torch.bool).triu(len(keys) - new + 1)
        weights = logits.masked_fill(future, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).reshape(new, -1)


def start(folder: Path) -> ServerArgs:
    args = ServerArgs(model_path=str(folder), device="cpu", skip_tokenizer_init=True, dtype="float32")
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    init_distributed_environment(
        world_size=1, rank=0, local_rank=0, distributed_init_method=f"tcp://127.0.0.1:{port}", backend="gloo"
    )
    initialize_model_parallel(backend="gloo")
    initialize_dp_attention(args)
    return args


def fill(model: nn.Module) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.data.fill_(float("nan"))
    return parameters


def draft(args: ServerArgs, case: Path) -> None:
    folder = case / "drafter"
    config = ModelConfig.from_server_args(args, model_path=str(folder), is_draft_model=True).hf_config
    model_class, _ = ModelRegistry.resolve_model_cls(config.architectures)
    torch.set_default_dtype(torch.float32)
    model = model_class(config)
    tensors = load_file(folder / "model.safetensors")
    given = load_file(case / "in.safetensors")

    # Each key alone: does any parameter, or the vocabulary map, take it?
    unused = []
    for name, tensor in tensors.items():
        parameters = fill(model)
        model.hot_token_id = None
        model.load_weights([(name, tensor)])
        if model.hot_token_id is None and all(p.isnan().all() for p in parameters.values()):
            unused.append(name)
    fill(model)
    model.load_weights(tensors.items())
    model.set_embed(nn.Parameter(given["embedding"]))
    missing = [name for name, parameter in model.named_parameters() if parameter.isnan().any()]
    ids = config.eagle_config["eagle_aux_hidden_state_layer_ids"]
    (case / "out.json").write_text(json.dumps({"unused": unused, "missing": missing, "ids": ids}))

    layers = [layer.self_attn for layer in model.model.layers]
    radix = [layer.attn for layer in layers]
    ids, states, steps = given["input_ids"], given["states"], int(given["steps"])
    head = model.lm_head.weight[: config.draft_vocab_size]  # the rest is padding
    logits = torch.full((steps, len(ids), len(head)), float("nan"))

    def forward(token: Tensor, position: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        batch = SimpleNamespace(
            mm_input_embeds=None,
            forward_mode=SimpleNamespace(is_extend=lambda: False),
            spec_info=SimpleNamespace(hidden_states=hidden),
        )
        out, (carried,) = model.model(token, position, batch)
        return out @ head.t(), carried

    with torch.no_grad():
        for t in range(len(ids) - 1):
            for layer, attention in zip(layers, radix, strict=True):
                layer.attn = CachedAttention(attention)
            # Draft extend: everything up to t with the target's states; then one token at a time on its own.
            out, carried = forward(ids[1 : t + 2], torch.arange(t + 1), states[: t + 1])
            logits[0, t] = out[-1]
            hidden = carried[-1:]
            for k in range(1, min(steps, len(ids) - 1 - t)):
                out, hidden = forward(ids[t + 1 + k : t + 2 + k], torch.tensor([t + k]), hidden)
                logits[k, t] = out[-1]
    save_file({"logits": logits, "hot_token_id": model.hot_token_id}, case / "out.safetensors")


def main(cases: list[Path]) -> None:
    args = start(cases[0] / "drafter")
    for case in cases:
        draft(args, case)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
