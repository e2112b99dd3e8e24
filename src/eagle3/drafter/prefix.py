"""Causal attention over the step-0 keys of a document, with its log-sum-exp, so that more keys can be merged in.

The backward takes the *merged* output and log-sum-exp: these determine every probability, as in FlashAttention
(arXiv 2205.14135, appendix B).
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eagle3.drafter.plan import Queries, Spans

QUERY_BLOCK = 128
FLASH_HEAD_DIM = 256
"""The largest that FlashAttention 2 has kernels for; it must be a multiple of 8."""
FLASH_CAPABILITY = (8, 0)
_FLASH = torch.ops.aten


class Prefix(Protocol):
    """Queries `q [n, heads, d]` of some of a plan's needed rows, keys and values `[r, kv_heads, d]` of all."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Output `[n, heads, d]`, log-sum-exp `[n, heads]` in at least fp32, and what the backward is to be given."""
        ...

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, kept: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients to q, k and v of `out` and `lse` over all keys, as far as these keys have a share in them."""
        ...


def prefix_of(queries: Queries, like: Tensor) -> Prefix:
    """FlashAttention where it has a kernel for a tensor `[n, heads, d]` such as `like`, else plain products.

    To be made once a batch, and used by every step.
    """
    if queries.segments and _flash_fits(like):
        return Flash(queries.spans)
    return Blocked(blocks_of(queries))


def _flash_fits(like: Tensor) -> bool:
    return (
        like.is_cuda
        and like.dtype in (torch.bfloat16, torch.float16)
        and like.shape[-1] % 8 == 0
        and like.shape[-1] <= FLASH_HEAD_DIM
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(like.device) >= FLASH_CAPABILITY
    )


@dataclass(frozen=True)
class Flash:
    """FlashAttention 2 as it comes with torch. The mask of a document with fewer queries than keys is aligned at its
    end, which is what `Spans` provides. Its operators, not `torch.nn.attention`: those give no way to the backward of a
    merged log-sum-exp.
    """

    spans: Spans

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, list[Tensor]]:
        out, lse, *kept, _ = _FLASH._flash_attention_forward(
            self._spread(q), k, v, *self._lengths(), 0.0, True, False, scale=scale
        )
        return self._gather(out), self._gather(lse.t()), kept

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, kept: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        # A row that is none of ours has no gradient, and so no share in the keys': any finite log-sum-exp will do.
        wide = self._spread(lse).t().contiguous()
        grads = _FLASH._flash_attention_backward(
            *(self._spread(grad), self._spread(q), k, v, self._spread(out), wide),
            *(*self._lengths(), 0.0, True, *kept),
            scale=scale,
        )
        return self._gather(grads[0]), grads[1], grads[2]

    def _lengths(self) -> tuple[Tensor, Tensor, int, int]:
        spans = self.spans
        # At least 2: for one query a document it has a kernel of its own, which lays the log-sum-exp out otherwise.
        return spans.starts, spans.key_starts, max(spans.longest, 2), spans.longest_keys

    def _spread(self, rows: Tensor) -> Tensor:
        """Rows of the active positions as rows of spans, the others 0."""
        if self.spans.place is None:
            return rows.contiguous()
        return rows.new_zeros((self.spans.rows, *rows.shape[1:])).index_copy_(0, self.spans.place, rows)

    def _gather(self, rows: Tensor) -> Tensor:
        return rows if self.spans.place is None else rows.index_select(0, self.spans.place)


@dataclass(frozen=True)
class Block:
    """Queries `[q0, q1)` against keys `[k0, k1)` of the needed rows, all of one document."""

    q0: int
    q1: int
    k0: int
    k1: int
    later: Tensor
    """[q1-q0, k1-k0] bool: the key comes after the query."""


def blocks_of(queries: Queries) -> list[Block]:
    """Keys after a block's last query are left out."""
    rows = queries.in_needed
    at = rows.tolist()
    blocks = []
    for segment in queries.segments:
        for q0 in range(segment.q0, segment.q1, QUERY_BLOCK):
            q1 = min(q0 + QUERY_BLOCK, segment.q1)
            k1 = at[q1 - 1] + 1
            keys = torch.arange(segment.k0, k1, device=rows.device)
            blocks.append(Block(q0, q1, segment.k0, k1, keys > rows[q0:q1, None]))
    return blocks


@dataclass(frozen=True)
class Blocked:
    """Plain products, a block of queries at a time; logits and probabilities are in at least fp32.

    Query heads of one key head are grouped: `[n, kv, group, d]`.
    """

    blocks: list[Block]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, list[Tensor]]:
        n, heads, d = q.shape
        kv = k.shape[1]
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        query = q.to(wide).view(n, kv, heads // kv, d) * scale
        key, value = k.to(wide).transpose(0, 1), v.transpose(0, 1)
        out = torch.empty_like(query)
        lse = query.new_empty(query.shape[:3])
        for block in self.blocks:
            logits = _logits(query, key, block)
            highest = logits.amax(-1, keepdim=True)
            weights = logits.sub_(highest).exp_()
            total = weights.sum(-1, keepdim=True)
            product = weights.to(q.dtype).flatten(1, 2) @ value[:, block.k0 : block.k1]
            torch.div(_rows(product, weights), _rows(total, weights), out=out[block.q0 : block.q1])
            lse[block.q0 : block.q1] = _rows(highest + total.log(), weights)[..., 0]
        return out.view(n, heads, d), lse.view(n, heads), []

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, kept: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        n, heads, d = q.shape
        grouped = (n, k.shape[1], heads // k.shape[1])
        plain, plain_grad, lse = q.view(*grouped, d), grad.view(*grouped, d), lse.view(grouped)
        query = plain.to(lse.dtype) * scale
        key, value = k.transpose(0, 1), v.transpose(0, 1)
        wide_key = key.to(lse.dtype)
        delta = (plain_grad.to(lse.dtype) * out.view(*grouped, d)).sum(-1)
        d_query = torch.empty_like(query)
        d_key, d_value = torch.zeros_like(wide_key), torch.zeros_like(wide_key)
        for block in self.blocks:
            rows, cols = slice(block.q0, block.q1), slice(block.k0, block.k1)
            weights = _logits(query, wide_key, block).sub_(_groups(lse[rows, ..., None])).exp_()
            queries, grads_here = (_groups(x[rows]).flatten(1, 2) for x in (plain, plain_grad))
            d_value[:, cols] += weights.to(q.dtype).flatten(1, 2).transpose(1, 2) @ grads_here
            d_weights = (grads_here @ value[:, cols].transpose(1, 2)).view(weights.shape)
            d_logits = weights.mul_(d_weights - _groups(delta[rows, ..., None])).to(q.dtype)
            d_query[rows] = _rows(d_logits.flatten(1, 2) @ key[:, cols], d_logits)
            d_key[:, cols] += d_logits.flatten(1, 2).transpose(1, 2) @ queries
        return (d_query * scale).view(q.shape), (d_key * scale).transpose(0, 1), d_value.transpose(0, 1)


def _logits(query: Tensor, key: Tensor, block: Block) -> Tensor:
    """`[kv, group, queries, keys]` of `query [n, kv, group, d]` and `key [kv, r, d]`; keys to come are -inf."""
    queries = _groups(query[block.q0 : block.q1])
    logits = queries.flatten(1, 2) @ key[:, block.k0 : block.k1].transpose(1, 2)
    return logits.view(*queries.shape[:3], -1).masked_fill_(block.later, float("-inf"))


def _groups(rows: Tensor) -> Tensor:
    """`[queries, kv, group, x]` as `[kv, group, queries, x]`."""
    return rows.permute(1, 2, 0, 3)


def _rows(product: Tensor, like: Tensor) -> Tensor:
    """`[kv, group * queries, x]` back to `[queries, kv, group, x]`."""
    return product.view(*like.shape[:3], -1).permute(2, 0, 1, 3)
