"""A fake, and named so: SGLang's compiled CPU kernels of speculative decoding, written out in torch.

With this folder in front of PYTHONPATH and `--attention-backend intel_amx`, SGLang's own EAGLE3 workers, scheduler and
drafter run on any CPU. What each does is read from the Triton kernel of the same name in SGLang 0.5.23
(`sglang/kernels/ops/speculative`), or, for attention, from how `intel_amx_backend.py` calls it. Slow; for tiny models.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

__version__ = "0"


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is not among the fakes of tests/e2e/speculating")

    return absent


def _spans(start: Tensor, end: Tensor) -> list[tuple[int, int]]:
    return list(zip(start.tolist(), end.tolist(), strict=True))


def assign_req_to_token_pool_cpu(
    rows: Tensor, table: Tensor, start: Tensor, end: Tensor, locations: Tensor, pool_len: int
) -> None:
    done = 0
    for row, (a, b) in zip(rows.tolist(), _spans(start, end), strict=True):
        table[row, a:b] = locations[done : done + b - a].to(table.dtype)
        done += b - a


def assign_extend_cache_locs_cpu(
    rows: Tensor, table: Tensor, start: Tensor, end: Tensor, out: Tensor, pool_len: int
) -> None:
    done = 0
    for row, (a, b) in zip(rows.tolist(), _spans(start, end), strict=True):
        out[done : done + b - a] = table[row, a:b].to(out.dtype)
        done += b - a


def assign_draft_cache_locs_contiguous_cpu(
    rows: Tensor, table: Tensor, seq_lens: Tensor, out: Tensor, pool_len: int, topk: int, steps: int
) -> None:
    count = topk * steps
    for i, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        out[i * count : (i + 1) * count] = table[row, length : length + count].to(out.dtype)


def fill_bonus_tokens_cpu(accepted: Tensor, lengths: Tensor, bonus: Tensor, stride: int) -> None:
    at = torch.arange(len(lengths)) * stride + lengths.long() - 1
    bonus.copy_(accepted.flatten()[at].to(bonus.dtype))


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, locations: Tensor, out: Tensor) -> None:
    kept = accept_index.flatten()
    kept = kept[kept > -1].long()
    out[: len(kept)] = locations[kept].to(out.dtype)


def rotate_input_ids_cpu(
    ids: Tensor, start: Tensor, lengths: Tensor, last: Tensor, select_index: Tensor | None
) -> None:
    for i, (begin, length) in enumerate(zip(start.tolist(), lengths.tolist(), strict=True)):
        ids[begin : begin + length - 1] = ids[begin + 1 : begin + length].clone()
        if length > 0:
            ids[begin + length - 1 if select_index is None else int(select_index[i])] = last.flatten()[i].to(ids.dtype)


def build_tree_kernel_efficient_cpu(
    parents: Tensor,
    selected: Tensor,
    seq_lens: Tensor,
    mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    topk: int,
    depth: int,
    width: int,
    mode: int,
) -> None:
    assert int(mode) == 1, "a CPU's masks are draft tokens by draft tokens"
    mask = mask.view(-1)[: len(seq_lens) * width * width].view(len(seq_lens), width, width)
    for i, length in enumerate(seq_lens.tolist()):
        chosen = selected[i].tolist()

        def parent_of(index: int, i: int = i, chosen: list[int] = chosen) -> int:
            """Of the draft token at `index` (1 .. width - 1); 0 is the root, -1 nobody."""
            above = chosen[index - 1] // topk
            if above == 0:
                return 0
            wanted = int(parents[i, above])
            return chosen.index(wanted) + 1 if wanted in chosen else -1

        retrieve_index[i] = torch.arange(i * width, (i + 1) * width)
        positions[i * width] = length
        for index in range(width - 1, 0, -1):
            if (parent := parent_of(index)) >= 0:
                next_sibling[i, index] = next_token[i, parent]
                next_token[i, parent] = index
        mask[i] = False
        mask[i, :, 0] = True
        for index in range(1, width):
            at, steps = index, 0
            while at > 0:
                mask[i, index, at] = True
                at, steps = parent_of(at), steps + 1
            positions[i * width + index] = length + steps


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    wanted = target_predict.flatten()
    for i in range(len(candidates)):
        last, at, accepted = int(retrive_index[i, 0]), 0, 0
        accept_index[i, 0] = last
        while accepted + 1 < accept_index.shape[1]:
            at = int(retrive_next_token[i, at])
            while at != -1 and candidates[i, at] != wanted[last]:
                at = int(retrive_next_sibling[i, at])
            if at == -1:
                break
            predicts[last] = wanted[last]
            accepted += 1
            last = int(retrive_index[i, at])
            accept_index[i, accepted] = last
        accept_token_num[i] = accepted
        predicts[last] = wanted[last]


def copy_all_layer_kv_cache_cpu(pointers: Tensor, strides: Tensor, to: Tensor, of: Tensor) -> None:
    """Rows of every cache, which is known by its address alone."""
    for pointer, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(pointer + source * stride, stride) for source in of.tolist()]
        for target, row in zip(to.tolist(), rows, strict=True):
            ctypes.memmove(pointer + target * stride, row, stride)


def build_draft_decode_metadata_cpu(
    table: Tensor, rows: Tensor, seq_lens: Tensor, topk: int, steps: int, pool_len: int
) -> Tensor:
    """A row for each branch: the prefix, then the branch's own places."""
    out = table.new_zeros(len(rows) * topk, table.shape[1])
    for i, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        for branch in range(topk):
            begin = length + branch * steps
            out[i * topk + branch, :length] = table[row, :length]
            out[i * topk + branch, length : length + steps] = table[row, begin : begin + steps]
    return out


def _attend(q: Tensor, keys: Tensor, values: Tensor, scaling: float, seen: Tensor | None) -> Tensor:
    """`q [m, heads, d]` over `keys [n, kv heads, d]`, with `seen [m, n]`."""
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys.transpose(0, 1)[None].to(q.dtype),
        values.transpose(0, 1)[None].to(q.dtype),
        attn_mask=seen,
        scale=scaling,
        enable_gqa=q.shape[1] != keys.shape[1],
    )
    return out[0].transpose(0, 1)


def decode_attention_cpu(
    q: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    key_scale: float,
    value_scale: float,
    out: Tensor,
    k: Tensor,
    v: Tensor,
    locations: Tensor,
    scratch: Tensor,
    table: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    scaling: float,
    *further: Any,
) -> None:
    """Stores the new keys and values, and attends to all."""
    key_buffer[locations] = k.view(len(locations), *key_buffer.shape[1:]).to(key_buffer.dtype)
    value_buffer[locations] = v.view(len(locations), *value_buffer.shape[1:]).to(value_buffer.dtype)
    for i, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        at = table[row, :length].long()
        out[i] = _attend(q[i : i + 1], key_buffer[at], value_buffer[at], scaling, None)[0]


def extend_attention_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    key_scale: float,
    value_scale: float,
    table: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    extend_lens: Tensor,
    start: Tensor,
    longest: int,
    scaling: float,
    cap: float,
    is_cross: bool,
    window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """New keys and values are stored already; `tree_mask` says which draft tokens a draft token sees."""
    masked = 0
    for i, (row, length, new) in enumerate(zip(rows.tolist(), seq_lens.tolist(), extend_lens.tolist(), strict=True)):
        at, begin = table[row, :length].long(), int(start[i])
        seen = torch.ones(new, length, dtype=torch.bool).tril(length - new)
        if tree_mask is not None:
            seen[:, length - new :] = tree_mask.view(-1)[masked : masked + new * new].view(new, new).bool()
            masked += new * new
        out[begin : begin + new] = _attend(q[begin : begin + new], key_buffer[at], value_buffer[at], scaling, seen)


for _kernel in (decode_attention_cpu, extend_attention_cpu):
    setattr(torch.ops.sgl_kernel, _kernel.__name__, _kernel)
