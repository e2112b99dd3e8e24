"""EAGLE-3 by its definition: plain loops over positions and steps, one vector at a time, nothing shared or skipped.

Written from the paper (arXiv 2503.01840) and independently of `eagle3.drafter`: it takes a dict of tensors by SGLang's
names, and imports nothing from the code that it checks. Slow; for float64 and small sizes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Setting:
    """What the definition needs besides weights and data."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    angles: Tensor
    """[head_dim/2] angle a position turns each pair by."""
    stretch: float = 1.0
    """Factor of cosine and sine (YaRN)."""
    fc_norm: bool = False
    norm_output: bool = False
    num_layers: int = 1


@dataclass(frozen=True)
class Expected:
    loss: Tensor
    """[steps] sums."""
    valid: list[int]
    correct: list[int]
    reached: list[int]
    accepted: list[int]
    logits: dict[tuple[int, int], Tensor]
    """The drafter's, by (step, position), at scored positions."""


Heads = dict[tuple[int, int, int], list[Tensor]]
"""Each head's vector, by (layer, step, position)."""


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean() + eps) * weight


def turn(x: Tensor, position: int, setting: Setting) -> Tensor:
    """RoPE of one head: element i is paired with element i + head_dim/2."""
    half = setting.head_dim // 2
    out = []
    for i in range(half):
        angle = float(setting.angles[i]) * position
        out.append((x[i] * math.cos(angle) - x[i + half] * math.sin(angle)) * setting.stretch)
    for i in range(half):
        angle = float(setting.angles[i]) * position
        out.append((x[i + half] * math.cos(angle) + x[i] * math.sin(angle)) * setting.stretch)
    return torch.stack(out)


def first_state(w: dict[str, Tensor], states: Tensor, setting: Setting) -> Tensor:
    """g^0 of one position's captured states [K*Ht]."""
    if "fc.weight" not in w:
        return states
    if setting.fc_norm:
        count = sum(name.startswith("fc_norm.") for name in w)
        parts = states.view(count, -1)
        states = torch.cat([norm(parts[i], w[f"fc_norm.{i}.weight"], setting.eps) for i in range(count)])
    return w["fc.weight"] @ states


def attention(
    queries: list[Tensor], keys: Heads, values: Heads, seen: list[tuple[int, int, int]], setting: Setting
) -> Tensor:
    """One position's queries over the keys that it sees: [heads * head_dim]."""
    heads = []
    for h, query in enumerate(queries):
        shared = h // (setting.num_heads // setting.num_kv_heads)
        scores = torch.stack([query @ keys[where][shared] for where in seen])
        weights = torch.softmax(scores / math.sqrt(setting.head_dim), dim=0)
        heads.append(sum(weights[i] * values[where][shared] for i, where in enumerate(seen)))
    return torch.cat(heads)


def rest_of_layer(w: dict[str, Tensor], layer: str, residual: Tensor, attended: Tensor, setting: Setting) -> Tensor:
    y = residual + w[f"{layer}.self_attn.o_proj.weight"] @ attended
    if f"{layer}.self_attn.o_proj.bias" in w:
        y = y + w[f"{layer}.self_attn.o_proj.bias"]
    x = norm(y, w[f"{layer}.post_attention_layernorm.weight"], setting.eps)
    gate = w[f"{layer}.mlp.gate_proj.weight"] @ x
    up = w[f"{layer}.mlp.up_proj.weight"] @ x
    return y + w[f"{layer}.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)


def loss_of(p: Tensor, q: Tensor, kind: str) -> Tensor:
    if kind == "ce":
        return -sum((p[v] * q[v].log() for v in range(len(p))), torch.zeros((), dtype=p.dtype))
    if kind == "kl":
        # p may be 0 to the last bit: its share is 0 then, not 0 * log 0.
        return sum((p[v] * (p[v] / q[v]).log() for v in range(len(p)) if p[v] > 0), torch.zeros((), dtype=p.dtype))
    return -sum((torch.minimum(p[v], q[v]) for v in range(len(p))), torch.zeros((), dtype=p.dtype)).log()


def training_time_test(
    w: dict[str, Tensor],
    setting: Setting,
    documents: list[dict[str, Tensor]],
    embedding: Tensor,
    target_head: Tensor,
    draft_ids: Tensor,
    steps: int,
    kind: str,
) -> Expected:
    """Sums over documents, each of `input_ids [S]`, `loss_mask [S]`, `states [S, K*Ht]`, `final [S, Ht]`."""
    total = [torch.zeros((), dtype=embedding.dtype) for _ in range(steps)]
    valid, correct, reached, accepted = ([0] * steps for _ in range(4))
    all_logits: dict[tuple[int, int], Tensor] = {}
    base = 0
    for document in documents:
        ids, mask = document["input_ids"].tolist(), document["loss_mask"].tolist()
        length = len(ids)
        g = [first_state(w, document["states"][t], setting) for t in range(length)]
        keys: Heads = {}
        values: Heads = {}
        chain = [True] * length
        for k in range(steps):
            inside = [t for t in range(length) if t + 1 + k < length]
            x = {t: g[t] for t in inside}
            for n in range(setting.num_layers):
                # The names under which SGLang loads them.
                layer = "midlayer" if n == 0 else f"layers.{n}"
                queries = {}
                for t in inside:
                    z = norm(x[t], w[f"{layer}.hidden_norm.weight"], setting.eps)
                    if n == 0:
                        e = embedding[ids[t + 1 + k]]
                        if "embed_proj.weight" in w:
                            e = w["embed_proj.weight"] @ e
                        z = torch.cat((norm(e, w[f"{layer}.input_layernorm.weight"], setting.eps), z))
                    q = (w[f"{layer}.self_attn.q_proj.weight"] @ z).view(setting.num_heads, -1)
                    key = (w[f"{layer}.self_attn.k_proj.weight"] @ z).view(setting.num_kv_heads, -1)
                    value = (w[f"{layer}.self_attn.v_proj.weight"] @ z).view(setting.num_kv_heads, -1)
                    queries[t] = [turn(head, t + k, setting) for head in q]
                    keys[n, k, t] = [turn(head, t + k, setting) for head in key]
                    values[n, k, t] = list(value)
                for t in inside:
                    seen = [(n, 0, s) for s in range(t + 1)] + [(n, j, t) for j in range(1, k + 1)]
                    attended = attention(queries[t], keys, values, seen, setting)
                    x[t] = rest_of_layer(w, layer, x[t], attended, setting)
            for t in inside:
                g_next = x[t]
                out = norm(g_next, w["norm.weight"], setting.eps)
                logits = w["lm_head.weight"] @ out
                g[t] = out if setting.norm_output else g_next
                if t + 2 + k >= length or not mask[t + 2 + k]:
                    chain[t] = False
                    continue
                valid[k] += 1
                all_logits[k, base + t] = logits
                target = target_head @ document["final"][t + 1 + k]
                top = int(target.argmax())
                right = top == int(draft_ids[logits.argmax()])
                correct[k] += right
                reached[k] += chain[t]
                chain[t] = chain[t] and right
                accepted[k] += chain[t]
                if top in draft_ids.tolist():
                    p = torch.softmax(target[draft_ids], dim=0)
                    total[k] = total[k] + loss_of(p, torch.softmax(logits, dim=0), kind)
        base += length
    return Expected(torch.stack(total), valid, correct, reached, accepted, all_logits)
