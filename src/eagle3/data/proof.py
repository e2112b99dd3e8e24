"""Do dumped hidden states belong to the tokens that they are filed under? Three comparisons, and their tolerances.

**Log-probabilities.** `final` is the state after the last norm, so `log_softmax(lm_head(final[t]))[x_{t+1}]` must be
what the server itself says of its prompt. Both sides start from the same bfloat16 row; what may differ is that the
server rounds its logits to bfloat16, a relative error of at most 2^-9 each. A log-probability takes that error twice
(its own logit, and the normaliser, an average of the others), so with M the largest magnitude among the logits at t:

    |difference| <= 2 * 2^-9 * M = 2^-8 * M                                                                       (1)

`ratio` is the difference over (1). Summation order and split reductions in bfloat16 add a few roundings, so a mean
ratio of 1 and a single one of 8 are let pass. A row of another token or request, or a state before the norm, is off by
the spread of the logits themselves, some M/4 = 64 times (1).

**Rows.** The same sequence computed alone and among others gives the same rows but for rounding. Rows of a layer share
large common components, so they are compared after taking away their middle (the median over the tokens): the relative
error of a row of another token is then about sqrt(2), and that of rounding far below 1/2. A mixture of experts may
route a few tokens differently on a rounding, so a tenth of the rows may be off by more.

**Decoding.** An attention that is wrong in the same way for every prompt passes both: the server's log-probabilities
come from the same wrong states. But a server has two ways to a state: prefill, and decoding one token at a time out of
its cache, by other kernels (with latent attention by another formula too). So it continues a prompt by a few tokens,
and then gives the log-probabilities of prompt and continuation as one prompt. Rounding moves them by hundredths of a
nat, a mixture of experts a token by more now and then; an attention that is wrong in one of the ways moves most of them
by nats. The median over the decoded tokens of a sequence is compared. What is wrong in both ways, such as a rotary
embedding misread from the config, is not seen; the mean log-probability of the prompts may then be (see `doubt`).
"""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from eagle3.errors import ProofError

ROUNDING = 2.0**-8
MEAN_RATIO, MAX_RATIO = 1.0, 8.0
ROW_OFF, SHARE_OFF = 0.5, 0.1
FLOPS = 2e12
"""Of one comparison of log-probabilities: with a very large head only some positions are taken."""
HEAD_BLOCK = 16384
FEW = 8
DECODE_ERROR = 0.5
"""Nats."""


@dataclass(frozen=True)
class Agreement:
    """Of dumped final states with the server's log-probabilities."""

    tokens: int
    mean_error: float
    """Mean |difference|, in nats."""
    mean_ratio: float
    max_ratio: float
    mean_logprob: float
    """What the target thinks of the text, in nats a token."""

    @property
    def good(self) -> bool:
        return self.mean_ratio <= MEAN_RATIO and self.max_ratio <= MAX_RATIO


def logprob_agreement(final: Tensor, input_ids: Tensor, logprobs: Tensor, head: Tensor) -> Agreement:
    """Compares `final [S, H]` of the tokens `input_ids [S]` with the server's `logprobs [S-1]`, of tokens 1 to S-1.

    `head [V, H]` is the output head. Needs S >= 2.
    """
    positions = _positions(len(input_ids) - 1, head)
    states, following = final[positions].float(), input_ids[positions + 1].long()
    own = torch.empty(len(positions))
    largest = torch.zeros(len(positions))
    normaliser = torch.full((len(positions),), -torch.inf)
    for start in range(0, len(head), HEAD_BLOCK):
        logits = states @ head[start : start + HEAD_BLOCK].float().T
        normaliser = torch.logaddexp(normaliser, logits.logsumexp(-1))
        largest = torch.maximum(largest, logits.abs().amax(-1))
        inside = (following >= start) & (following < start + logits.shape[1])
        own[inside] = logits[inside, following[inside] - start]
    server = logprobs[positions]
    error = (own - normaliser - server).abs()
    # Not finite on either side is as wrong as can be, and must not hide in a comparison.
    ratio = (error / (ROUNDING * largest + 1e-4)).nan_to_num(nan=torch.inf)
    return Agreement(len(positions), float(error.mean()), float(ratio.mean()), float(ratio.max()), float(server.mean()))


def _positions(count: int, head: Tensor) -> Tensor:
    """All of `count` positions, or as many, evenly spread, as may be multiplied with the head."""
    affordable = max(16, int(FLOPS / (2 * head.numel())))
    if count <= affordable:
        return torch.arange(count)
    return torch.linspace(0, count - 1, affordable).long().unique()


def share_of_rows_off(rows: Tensor, reference: Tensor) -> float:
    """Share of the rows `[S, H]` that are not those of the reference but for rounding."""
    reference = reference.float()
    # Of a handful of rows the median may be one of them.
    middle = reference.median(dim=0).values if len(reference) >= FEW else torch.zeros(reference.shape[1])
    spread = (reference - middle).norm(dim=-1)
    error = (rows.float() - reference).norm(dim=-1)
    # A row in the very middle has no spread of its own to be compared with.
    relative = (error / torch.maximum(spread, spread.median())).nan_to_num(nan=torch.inf)
    return float((relative > ROW_OFF).float().mean())


@dataclass
class Findings:
    """What one round of the proof found, over all its sequences; becomes a part of the manifest."""

    sequences: int = 0
    tokens: int = 0
    mean_error: float = 0.0
    max_ratio: float = 0.0
    mean_logprob: float = 0.0
    max_share_of_rows_off: float = 0.0
    max_decode_error: float | None = None
    """Nats; None where no prompt was continued."""

    def add(self, agreement: Agreement) -> None:
        whole = self.tokens + agreement.tokens
        for name in ("mean_error", "mean_logprob"):
            value = getattr(self, name) * self.tokens + getattr(agreement, name) * agreement.tokens
            setattr(self, name, value / whole)
        self.max_ratio = max(self.max_ratio, agreement.max_ratio)
        self.tokens = whole
        self.sequences += 1

    def record(self) -> dict[str, float]:
        found = {**asdict(self), "tolerance_ratio": MAX_RATIO, "tolerance_share_of_rows_off": SHARE_OFF}
        if self.max_decode_error is None:
            del found["max_decode_error"]
        else:
            found["tolerance_decode_error"] = DECODE_ERROR
        return found

    def doubt(self, vocab_size: int) -> str | None:
        """What to say of prompts that the target finds less likely than random tokens: no error, but hardly right."""
        uniform = -math.log(vocab_size)
        if self.mean_logprob >= uniform:
            return None
        return (
            f"the target gives the prompts {self.mean_logprob:.2f} nats a token, less than a guess among its "
            f"{vocab_size:,} tokens ({uniform:.2f}). A trained model does so when the tokenizer or the weights are "
            "another model's, or its attention is wrong: look at target.path and server.flags before you train on this."
        )


def require_logprobs(what: str, agreement: Agreement) -> None:
    """Raises ProofError when the final states are not those that the server computed its log-probabilities from."""
    if agreement.good:
        return
    raise ProofError(
        f"{what}: log_softmax(lm_head(final)) differs from the server's own log-probabilities by "
        f"{agreement.mean_error:.3g} nats in the mean over {agreement.tokens} tokens. That is "
        f"{agreement.mean_ratio:.3g} times what rounding explains (at most {MEAN_RATIO:g}), and "
        f"{agreement.max_ratio:.3g} times at the worst token (at most {MAX_RATIO:g}). Either the rows belong to other "
        "tokens or requests, or the state is not the one after the final norm, or the head that was read is not the "
        "one served (target.text_prefix, a quantised head). Look at the plugin, the server's log and SGLang's version."
    )


def too_many_off(share: float, count: int) -> bool:
    """Whether a share of so many rows is more than may be off. A single row is let pass."""
    return share > SHARE_OFF and share * count > 1


def require_rows(what: str, state: str, share: float, count: int) -> None:
    """Raises ProofError when rows depend on what else the server was computing."""
    if not too_many_off(share, count):
        return
    raise ProofError(
        f"{what}, {state}: {share:.0%} of the rows change with what else the server computes (at most "
        f"{SHARE_OFF:.0%}). Rows of another request, a wrong attention back-end, or a prefill in chunks that loses its "
        "place: look at server.flags (attention_backend, chunked_prefill_size) and at the SGLang version."
    )


def require_decoding(what: str, decoded: Tensor, prefilled: Tensor) -> float:
    """The median difference of the log-probabilities `[N]` of tokens that were decoded from those prefilled, in nats.

    Raises ProofError where decoding and prefill do not compute the same.
    """
    error = float((decoded - prefilled).abs().nan_to_num(nan=torch.inf).median())
    if error > DECODE_ERROR:
        raise ProofError(
            f"{what}: of tokens that the server decoded after it, its log-probabilities differ from those that it "
            f"gives to the same tokens as a prompt by {error:.3g} nats in the median (at most {DECODE_ERROR:g}). "
            "Decoding and prefill do not compute the same, so one of them is wrong, and the hidden states are "
            "prefill's: an attention back-end that does not fit the model, or a cache of too low a precision. Look at "
            "server.flags (attention_backend, kv_cache_dtype) and at the SGLang version."
        )
    return error
