"""The drafter: Llama layers over the target's embeddings and states, mostly one, with the names SGLang loads.

The forward is that of `sglang/srt/models/llama_eagle3.py`: z = [norm(embedding); norm(g)] goes through attention, the
residual is g itself. A further layer is a plain Llama layer over the result of the one before. The last one's un-normed
result is carried to the next step (the normed one with `norm_output`, EAGLE-3.1).
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle3.drafter.fused import fused, recomputed
from eagle3.drafter.rope import attention_factor, inverse_frequencies, rotate
from eagle3.drafter.shape import DrafterShape

INIT_STD = 0.02


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in at least fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Of `x [..., H]`, computed in at least fp32 and returned in x's type."""
    wide = x if x.dtype == torch.float64 else x.float()
    return F.rms_norm(wide, wide.shape[-1:], None if weight is None else weight.to(wide.dtype), eps).to(x.dtype)


class Attention(nn.Module):
    """The weights of a layer's attention; `attention.py` computes it."""

    def __init__(self, shape: DrafterShape, width: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(width, shape.q_size, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_size, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_size, bias=False)
        self.o_proj = nn.Linear(shape.q_size, shape.hidden_size, bias=shape.attention_bias)


class MLP(nn.Module):
    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)


class DecoderLayer(nn.Module):
    """The first layer reads embeddings beside states; a further one has no `input_layernorm`."""

    def __init__(self, shape: DrafterShape, first: bool) -> None:
        super().__init__()
        self.self_attn = Attention(shape, (2 if first else 1) * shape.hidden_size)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps) if first else None
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Drafter(nn.Module):
    """Parameters carry SGLang's names: fc, midlayer.*, norm, lm_head, and fc_norm.{i} where switched on.

    Of several layers, the second is layers.1.*, and so on.

    The embedding is the target's and never part of the state. Only a drafter of another width than the target's has
    `embed_proj.weight [H, Ht]`, which the export multiplies into an embedding of its own.
    """

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        captured = shape.num_boundaries * shape.target_hidden_size
        self.fc = nn.Linear(captured, shape.hidden_size, bias=False) if shape.uses_fc else None
        self.fc_norm = (
            nn.ModuleList(RMSNorm(shape.target_hidden_size, shape.rms_norm_eps) for _ in range(shape.num_boundaries))
            if shape.fc_norm
            else None
        )
        self.embed_proj = (
            nn.Linear(shape.target_hidden_size, shape.hidden_size, bias=False)
            if shape.target_hidden_size != shape.hidden_size
            else None
        )
        self.midlayer = DecoderLayer(shape, first=True)
        self.layers = nn.ModuleDict({str(n): DecoderLayer(shape, first=False) for n in range(1, shape.num_layers)})
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)
        self.lm_head.requires_grad_(shape.train_lm_head)
        frequencies = inverse_frequencies(shape.head_dim, shape.rope_theta, shape.rope_scaling)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Random weights: normal with deviation 0.02, norms 1, biases 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INIT_STD, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, RMSNorm):
                nn.init.ones_(module.weight)

    @torch.no_grad()
    def start_from(self, draft_head: Tensor) -> None:
        """Begins the output head as the target's own rows, `draft_head [D, Ht]`.

        They are scaled to a mean length of 1, so that the first logits, of states that the last norm has given unit
        components, are about as large as 1: at full length an untrained drafter is sure and wrong, and unlearns slowly.
        A head that is not trained has them as they are: the last norm's weight is trained, and finds the length.
        Nothing happens for a drafter of another width than the target's.
        """
        if self.shape.hidden_size == self.shape.target_hidden_size:
            rows = draft_head.to(self.lm_head.weight.dtype)
            length = rows.norm(dim=1).mean().clamp(min=1e-6) if self.shape.train_lm_head else 1.0
            self.lm_head.weight.copy_(rows / length)

    def angles(self, position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine for positions `[n]`: each `[n, 1, head_dim/2]`."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        turn = position.to(wide)[:, None, None] * self.get_buffer("frequencies").to(wide)
        factor = attention_factor(self.shape.rope_scaling)
        return (turn.cos() * factor).to(dtype), (turn.sin() * factor).to(dtype)


@dataclass(frozen=True)
class LayerWeights:
    """A layer's weights, as in `Weights`."""

    shape: DrafterShape
    hidden_norm: Tensor | None
    """The first layer's; a further one is given what is normed already."""
    qkv_hidden: Tensor
    """[Q+2KV, H]."""
    o: Tensor
    o_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    """[2I, H]."""
    down: Tensor
    out_norm: Tensor
    """The next layer's `hidden_norm`, or the drafter's last norm."""

    @staticmethod
    def of(
        layer: DecoderLayer, shape: DrafterShape, qkv_hidden: Tensor, out_norm: Tensor, dtype: torch.dtype
    ) -> "LayerWeights":
        attn, mlp = layer.self_attn, layer.mlp
        return LayerWeights(
            shape=shape,
            hidden_norm=None if layer.input_layernorm is None else layer.hidden_norm.weight,
            qkv_hidden=qkv_hidden,
            o=attn.o_proj.weight.to(dtype),
            o_bias=None if attn.o_proj.bias is None else attn.o_proj.bias.to(dtype),
            post_norm=layer.post_attention_layernorm.weight,
            gate_up=torch.cat((mlp.gate_proj.weight.to(dtype), mlp.up_proj.weight.to(dtype))),
            down=mlp.down_proj.weight.to(dtype),
            out_norm=out_norm,
        )

    def qkv(self, x: Tensor, given: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value `[n, heads, head_dim]`.

        Args:
            x: `[n, H]`: of the first layer g; of a further one what the layer before left, normed.
            given: `[n, Q+2KV]`, what embeddings add: of the first layer only.
        """
        heads, eps = (self.shape.num_heads, self.shape.num_kv_heads), self.shape.rms_norm_eps
        if self.hidden_norm is None:
            return _further_qkv(x, cos, sin, self.qkv_hidden, heads)  # type: ignore[no-any-return]
        return _qkv(x, given, cos, sin, self.hidden_norm, self.qkv_hidden, heads, eps)  # type: ignore[no-any-return]

    def after_attention(self, g: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The rest of the layer, from the residual `g [n, H]` and `attended [n, Q]`: `[n, H]`, un-normed and normed."""
        weights = (self.o, self.o_bias, self.post_norm, self.gate_up, self.down, self.out_norm)
        return _after_attention(g, attended, *weights, self.shape.rms_norm_eps)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Weights:
    """A drafter's weights as training uses them: cast once a batch to the type of the computation, and merged.

    The input norm's weight is multiplied into the embedding's half of q, k, v. So that half has an input without a
    gradient, and, as it does not depend on the step, is computed once a token for all steps.
    """

    shape: DrafterShape
    fc: Tensor | None
    fc_norm: list[Tensor]
    embed_proj: Tensor | None
    qkv_embed: Tensor
    """[Q+2KV, H], of the first layer."""
    layers: list[LayerWeights]

    @staticmethod
    def of(drafter: Drafter, dtype: torch.dtype) -> "Weights":
        first, shape = drafter.midlayer, drafter.shape
        layers = [first, *(cast(DecoderLayer, layer) for layer in drafter.layers.values())]
        projections = [(x.self_attn.q_proj, x.self_attn.k_proj, x.self_attn.v_proj) for x in layers]
        halves = [projection.weight.split(shape.hidden_size, dim=1) for projection in projections[0]]
        embed = torch.cat([half for half, _ in halves])
        assert first.input_layernorm is not None
        hidden = [[half for _, half in halves], *([p.weight for p in further] for further in projections[1:])]
        out_norms = [*(layer.hidden_norm.weight for layer in layers[1:]), drafter.norm.weight]
        return Weights(
            shape=shape,
            fc=None if drafter.fc is None else drafter.fc.weight.to(dtype),
            fc_norm=[norm.get_parameter("weight") for norm in drafter.fc_norm or ()],
            embed_proj=None if drafter.embed_proj is None else drafter.embed_proj.weight.to(dtype),
            qkv_embed=(embed * first.input_layernorm.weight).to(dtype),
            layers=[
                LayerWeights.of(layer, shape, torch.cat([part.to(dtype) for part in parts]), out_norm, dtype)
                for layer, parts, out_norm in zip(layers, hidden, out_norms, strict=True)
            ],
        )

    def fuse(self, states: Tensor) -> Tensor:
        """g^0 `[n, H]` of captured states `[n, K*Ht]`."""
        if self.fc is None:
            return states
        if self.fc_norm:
            eps = self.shape.rms_norm_eps
            chunks = states.chunk(self.shape.num_boundaries, dim=-1)
            states = torch.cat([rms_norm(x, w, eps) for x, w in zip(chunks, self.fc_norm, strict=True)], dim=-1)
        return F.linear(states, self.fc)

    def embedding_share(self, embeddings: Tensor) -> Tensor:
        """What embeddings `[n, Ht]` add to q, k and v: `[n, Q+2KV]`."""
        if self.embed_proj is not None:
            embeddings = F.linear(embeddings, self.embed_proj)
        return F.linear(rms_norm(embeddings, None, self.shape.rms_norm_eps), self.qkv_embed)

    def normed(self, g: Tensor) -> Tensor:
        """`g [n, H]` as the first layer's products take it."""
        return _norm(g, self.layers[0].hidden_norm, self.shape.rms_norm_eps)  # type: ignore[no-any-return]


@fused({0: (0,)})
def _norm(g: Tensor, norm: Tensor, eps: float) -> Tensor:
    return rms_norm(g, norm, eps)


@fused({0: (0,), 1: (0,), 2: (0,), 3: (0,)})
def _qkv(
    g: Tensor, given: Tensor, cos: Tensor, sin: Tensor, norm: Tensor, weight: Tensor, heads: tuple[int, int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    merged = recomputed(_norm_and_multiply, g, norm, weight, eps) + given
    merged = merged.unflatten(-1, (heads[0] + 2 * heads[1], -1))
    q, key, value = merged.split((heads[0], heads[1], heads[1]), dim=1)
    # Kept for the backward: as a view it would keep all of them.
    return rotate(q, cos, sin), rotate(key, cos, sin), value.contiguous()


@fused({0: (0,), 1: (0,), 2: (0,)})
def _further_qkv(
    normed: Tensor, cos: Tensor, sin: Tensor, weight: Tensor, heads: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    merged = F.linear(normed, weight).unflatten(-1, (heads[0] + 2 * heads[1], -1))
    q, key, value = merged.split((heads[0], heads[1], heads[1]), dim=1)
    return rotate(q, cos, sin), rotate(key, cos, sin), value.contiguous()


@fused({0: (0,), 1: (0,)})
def _after_attention(
    g: Tensor,
    attended: Tensor,
    o: Tensor,
    o_bias: Tensor | None,
    post_norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
    out_norm: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    y = g + F.linear(attended, o, o_bias)
    inner = recomputed(_norm_and_multiply, y, post_norm, gate_up, eps)
    out = y + recomputed(_gate_and_multiply, inner, down)
    return out, rms_norm(out, out_norm, eps)


def _norm_and_multiply(x: Tensor, norm: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.linear(rms_norm(x, norm, eps), weight)


def _gate_and_multiply(inner: Tensor, down: Tensor) -> Tensor:
    gate, up = inner.chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)
