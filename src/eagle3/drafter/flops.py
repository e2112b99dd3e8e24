"""How many floating-point operations the definition of training-time test asks for on a batch: what MFU counts.

Model FLOPs as in PaLM (arXiv 2204.02311, appendix B): those of the matrix products, forward and backward, each once.
What an implementation computes twice, or computes for positions that no step is scored at, is not counted; neither are
norms, softmax, the optimiser, nor the target's logits, which are not the drafter's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.drafter.batch import valid_positions
from eagle3.drafter.shape import DrafterShape


@dataclass(frozen=True)
class Work:
    """Positions of a batch that some product is needed at; from masks alone."""

    needed: int
    """Whose step-0 key and value some query sees: each document's up to its last scored position."""
    queries: tuple[int, ...]
    """Of each step: where it, or a later one that reads its state, is scored."""
    needed_pairs: int
    """Step-0 keys that queries at all needed positions see, summed over queries: in layers before the last."""
    pairs: tuple[int, ...]
    """Of each step: step-0 keys that its queries see, summed over queries."""
    scored: tuple[int, ...]
    """Of each step: where its logits are compared."""

    @staticmethod
    def of(loss_mask: Tensor, document: Tensor, position: Tensor, steps: int) -> "Work":
        """Of a batch's `loss_mask`, `document`, `position`, each `[T]`, on the CPU: it counts at once."""
        valid = valid_positions(loss_mask, document, steps)
        alive = valid.flip(0).cumsum(0).flip(0) > 0  # [steps, T]
        ends = torch.zeros(int(document.max()) + 1 if len(document) else 0, dtype=torch.int64)
        ends.scatter_reduce_(0, document[alive[0]].long(), position[alive[0]] + 1, "amax")
        return Work(
            needed=int(ends.sum()),
            needed_pairs=int((ends * (ends + 1)).sum()) // 2,
            queries=tuple(alive.sum(1).tolist()),
            pairs=tuple((alive * (position + 1)).sum(1).tolist()),
            scored=tuple(valid.sum(1).tolist()),
        )


def training_flops(shape: DrafterShape, work: Work) -> int:
    """FLOPs of forward and backward: 2 for each multiply-add.

    A product of the drafter's own states counts three times: forward, gradient to the weight, gradient to the input.
    One whose input is data (captured states, embeddings) has no gradient to its input: twice; nor has a frozen output
    head one to its weight.
    """
    H, Ht, Q, KV = shape.hidden_size, shape.target_hidden_size, shape.q_size, shape.kv_size
    own, of_data = 0, 0
    if shape.uses_fc:
        of_data += work.needed * shape.num_boundaries * Ht * H
    # The embedding's half of q, k, v does not depend on the step: once a token.
    share = work.needed * H * (Q + 2 * KV)
    if shape.hidden_size != Ht:
        of_data += work.needed * Ht * H
        own += share
    else:
        of_data += share
    own += shape.num_layers * work.needed * H * 2 * KV
    after = Q * H + 3 * H * shape.intermediate_size
    # In layers before the last step 0 is computed wherever the next one's step-0 key and value are.
    own += (shape.num_layers - 1) * (work.needed * (H * Q + after) + 2 * Q * work.needed_pairs)
    for k, (queries, pairs, scored) in enumerate(zip(work.queries, work.pairs, work.scored, strict=True)):
        layer = queries * H * (Q + (2 * KV if k else 0))
        layer += 2 * Q * (pairs + k * queries)  # logits and mixing: step 0's keys, and one of each step since
        layer += queries * after
        own += (shape.num_layers if k else 1) * layer
        logits = scored * H * shape.draft_vocab_size
        if shape.train_lm_head:
            own += logits
        else:  # no gradient to the weight
            of_data += logits
    return 2 * (3 * own + 2 * of_data)
