"""Which shard and row every sequence goes to: decided before the extraction, the same every time."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from eagle3.data.layout import FORMAT_VERSION, ShardLayout, StateShape
from eagle3.data.skeleton import ShardIndex
from eagle3.errors import DataError
from eagle3.files.disk import GIB
from eagle3.files.json_file import write_json
from eagle3.files.whole import whole_file

PROMPTS = "prompts.safetensors"
PREPARE_AGAIN = "Remove the folder and prepare again."


def read_prompts(path: Path, names: Sequence[str]) -> tuple[Path, list[np.ndarray]]:
    """(the file, tensors of it) for prompts.safetensors or the folder that holds it.

    Raises DataError when it is missing, or can't be read.
    """
    path = path / PROMPTS if path.is_dir() else path
    try:
        with safe_open(path, "numpy") as file:
            return path, [file.get_tensor(name) for name in names]
    except FileNotFoundError:
        raise DataError(f"{path} is not there. Run the prepare stage first.") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} can't be read ({error}). {PREPARE_AGAIN}") from None


@dataclass(frozen=True)
class Prompts:
    """Tokenised conversations, as `prepare` wrote them; T tokens in n sequences."""

    input_ids: np.ndarray
    """[T] int32."""
    loss_mask: np.ndarray
    """[T] uint8."""
    offsets: np.ndarray
    """[n+1] int64."""
    sample_ids: np.ndarray
    """[n] int64, unique."""

    @staticmethod
    def load(path: Path) -> "Prompts":
        """From prompts.safetensors or the folder that holds it. Raises DataError when it is missing or inconsistent."""
        path, arrays = read_prompts(path, ("input_ids", "loss_mask", "offsets", "sample_ids"))
        prompts = Prompts(*arrays)
        T, n = len(prompts.input_ids), len(prompts.sample_ids)
        offsets = prompts.offsets
        if len(prompts.loss_mask) != T or len(offsets) != n + 1 or offsets[0] != 0 or offsets[-1] != T:
            raise DataError(f"{path}: the tensors' lengths don't fit each other. {PREPARE_AGAIN}")
        if bool((np.diff(offsets) < 0).any()):
            raise DataError(f"{path}: offsets don't rise. {PREPARE_AGAIN}")
        unique, counts = np.unique(prompts.sample_ids, return_counts=True)
        if len(unique) != n or (n and unique[0] < 0):
            wrong = unique[counts > 1][:1].tolist() or unique[:1].tolist()
            raise DataError(f"{path}: sample id {wrong[0]} is negative or there twice. {PREPARE_AGAIN}")
        return prompts

    @property
    def lengths(self) -> np.ndarray:
        """[n] int64."""
        return np.diff(self.offsets)

    def fingerprint(self) -> str:
        """sha256 of ids, masks, offsets and sample ids."""
        digest = hashlib.sha256()
        for array in (self.input_ids, self.loss_mask, self.offsets, self.sample_ids):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class ShardPlan:
    """One shard to be: the sequences `first` to `first + layout.sequences` of the placement."""

    file: str
    first: int
    layout: ShardLayout

    @property
    def sequences(self) -> range:
        """Positions in the placement."""
        return range(self.first, self.first + self.layout.sequences)


@dataclass(frozen=True)
class Placement:
    """m placed sequences, in order of the prompts."""

    prompts: Prompts
    source: np.ndarray
    """[m] int64: position in the prompts."""
    sample_ids: np.ndarray
    """[m] int64."""
    shard: np.ndarray
    """[m] int64."""
    row: np.ndarray
    """[m] int64: first row in the shard."""
    length: np.ndarray
    """[m] int64, in tokens."""
    shards: list[ShardPlan]
    skipped: dict[str, int]
    """Prompts that can't be extracted: {"empty": .., "too_long": ..}; only reasons that occurred."""

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def tokens(self) -> int:
        return int(self.length.sum())

    def input_ids(self, i: int) -> np.ndarray:
        """[S] int32: the tokens of placed sequence i."""
        start = int(self.prompts.offsets[self.source[i]])
        return self.prompts.input_ids[start : start + int(self.length[i])]

    def loss_mask(self, i: int) -> np.ndarray:
        """[S] uint8: the loss mask of placed sequence i."""
        start = int(self.prompts.offsets[self.source[i]])
        return self.prompts.loss_mask[start : start + int(self.length[i])]

    def index(self, plan: ShardPlan) -> ShardIndex:
        """What a shard holds beside its states."""
        spans = [(int(self.prompts.offsets[self.source[i]]), int(self.length[i])) for i in plan.sequences]
        lengths = self.length[plan.first : plan.first + plan.layout.sequences]
        return ShardIndex(
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            sample_ids=self.sample_ids[plan.first : plan.first + plan.layout.sequences],
            input_ids=np.concatenate([self.prompts.input_ids[s : s + n] for s, n in spans]),
            loss_mask=np.concatenate([self.prompts.loss_mask[s : s + n] for s, n in spans]),
        )

    def summary(self) -> dict[str, object]:
        """For the manifest: what a complete dataset must hold."""
        tokens = [plan.layout.tokens for plan in self.shards]
        digest = placement_sha256(self.sample_ids, self.length, tokens)
        return {"sequences": len(self), "tokens": self.tokens, "shards": len(self.shards), "sha256": digest}


def placement_sha256(sample_ids: np.ndarray, lengths: np.ndarray, shard_tokens: list[int]) -> str:
    """sha256 that fixes which sequences there are, how long, in which order and shard."""
    digest = hashlib.sha256()
    for array in (sample_ids, lengths, np.array(shard_tokens)):
        digest.update(np.ascontiguousarray(array, np.int64).tobytes())
    return digest.hexdigest()


def place(prompts: Prompts, shape: StateShape, shard_gib: float, context_length: int) -> Placement:
    """Cuts the ordered prompts into shards of at most `shard_gib`; a sequence larger than that gets its own.

    Raises DataError when nothing is left to extract.
    """
    lengths = prompts.lengths
    fits = (lengths > 0) & (lengths <= context_length)
    reasons = {"empty": int((lengths == 0).sum()), "too_long": int((lengths > context_length).sum())}
    source = np.nonzero(fits)[0]
    if not len(source):
        raise DataError(f"No prompt can be extracted: of {len(lengths)}, {reasons}. Check the dataset and its limits.")
    length = lengths[source]
    room = max(1, int(shard_gib * GIB) // shape.token_bytes)
    shard, row, starts = np.empty_like(length), np.empty_like(length), []
    used = room
    for i, n in enumerate(length.tolist()):
        if not starts or used + n > room:
            starts.append(i)
            used = 0
        shard[i], row[i] = len(starts) - 1, used
        used += n
    plans = []
    for number, (first, end) in enumerate(zip(starts, [*starts[1:], len(length)], strict=True)):
        layout = ShardLayout(shape, int(length[first:end].sum()), end - first)
        plans.append(ShardPlan(f"shard-{number:05d}.safetensors", first, layout))
    skipped = {reason: count for reason, count in reasons.items() if count}
    return Placement(prompts, source, prompts.sample_ids[source], shard, row, length, plans, skipped)


def write_placement(work: Path, placements: Sequence[Placement], nonce: str) -> None:
    """work/placement.json and work/placement.safetensors: what the server's plugin needs to put rows in their place.

    Shards of several placements (the dataset's, the proof's) are numbered one after the other; each has its own dtype.
    """
    shape = placements[0].shards[0].layout.shape
    plans = [plan for placement in placements for plan in placement.shards]
    firsts = np.cumsum([0, *(len(placement.shards) for placement in placements)]).tolist()
    columns = {
        "sample_ids": [p.sample_ids for p in placements],
        "shard": [p.shard + first for p, first in zip(placements, firsts, strict=False)],
        "row": [p.row for p in placements],
        "length": [p.length for p in placements],
    }
    table = {name: np.concatenate(parts).astype(np.int64) for name, parts in columns.items()}
    with whole_file(work / "placement.safetensors") as partial:
        save_file(table, partial)
    head = {
        "format_version": FORMAT_VERSION,
        "nonce": nonce,
        "hidden_size": shape.hidden_size,
        "states": list(shape.states),
        "shards": [
            {
                "file": plan.file,
                "tokens": plan.layout.tokens,
                "dtype": plan.layout.shape.dtype,
                "state_offsets": plan.layout.state_offsets,
                "scale_offsets": plan.layout.scale_offsets,
            }
            for plan in plans
        ],
    }
    write_json(work / "placement.json", head)
