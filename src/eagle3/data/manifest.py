"""manifest.json: what a dataset folder is, and which shards of it exist."""

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.data.layout import FORMAT_VERSION, ShardLayout, StateShape
from eagle3.data.manifest_fields import OPTIONAL, odd_fields
from eagle3.errors import DataError

NAME = "manifest.json"


@dataclass(frozen=True)
class ShardEntry:
    """A finished shard."""

    file: str
    sequences: int
    tokens: int
    bytes: int
    sha256: str
    """Of everything but the states: the header, and the tensors after the states."""


@dataclass
class Manifest:
    """Fields as in the file; docs/formats.md explains each."""

    states: list[str]
    boundaries: list[int]
    dtype: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    target: dict[str, str]
    prompts_fingerprint: str
    placement: dict[str, Any]
    """What was planned: {sequences, tokens, shards, sha256}."""
    tokenizer_sha256: str = ""
    template_sha256: str = ""
    sglang_version: str = ""
    server_flags: dict[str, Any] = field(default_factory=dict)
    plugin_sha256: str = ""
    nccl_env: dict[str, str] = field(default_factory=dict)
    sequences: int = 0
    tokens: int = 0
    bytes: int = 0
    shards: list[ShardEntry] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)
    """Sample id -> why its rows are not to be used."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Why prompts were not placed at all -> how many."""
    proof: dict[str, Any] = field(default_factory=dict)
    quantisation: dict[str, Any] = field(default_factory=dict)
    """What storing states in 8 bits loses; in the file only where they are."""
    complete: bool = False
    final_norm: str = "post"
    format_version: int = FORMAT_VERSION

    @property
    def shape(self) -> StateShape:
        return StateShape(tuple(self.states), self.hidden_size, self.dtype)

    def layout(self, shard: ShardEntry) -> ShardLayout:
        return ShardLayout(self.shape, shard.tokens, shard.sequences)

    def add(self, shard: ShardEntry) -> None:
        """Lists a finished shard, in order of names, and counts it."""
        self.replace([*(s for s in self.shards if s.file != shard.file), shard])

    def replace(self, shards: list[ShardEntry]) -> None:
        self.shards = sorted(shards, key=lambda s: s.file)
        self.sequences = sum(s.sequences for s in self.shards)
        self.tokens = sum(s.tokens for s in self.shards)
        self.bytes = sum(s.bytes for s in self.shards)

    def save(self, folder: Path) -> None:
        """Written beside and renamed: a reader sees the old one or the new one."""
        raw = dataclasses.asdict(self)
        for name in OPTIONAL:
            if not raw[name]:
                del raw[name]
        beside = folder / f"{NAME}.new"
        with beside.open("w", encoding="utf-8") as file:
            json.dump(raw, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        beside.rename(folder / NAME)
        sync_folder(folder)

    @staticmethod
    def load(folder: Path) -> "Manifest":
        """Raises DataError when there is none, or it is not one that this version reads."""
        path = Path(folder) / NAME
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(
                f"{folder} is not a dataset of hidden states: it has no {NAME}. Run the extraction."
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(
                f"{path} can't be read ({error}). Restore it, or remove the folder and make the dataset again."
            ) from None
        version = raw.get("format_version") if isinstance(raw, dict) else None
        if version != FORMAT_VERSION:
            raise DataError(
                f"{path} has format version {version!r}; this version of eagle3 reads {FORMAT_VERSION}. "
                "Extract again, or use the version of eagle3 that wrote it."
            )
        return _from_json(raw, path)


def _from_json(raw: dict[str, Any], path: Path) -> Manifest:
    for odd in odd_fields(raw):
        raise DataError(f"{path}: {odd}. Restore it, or remove the folder and make the dataset again.")
    values = {item.name: raw[item.name] for item in dataclasses.fields(Manifest) if item.name in raw}
    values["shards"] = [ShardEntry(**entry) for entry in raw["shards"]]
    manifest = Manifest(**values)
    try:
        _ = manifest.shape
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return manifest


def sync_folder(folder: Path) -> None:
    """Makes a rename last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def quantisation_text(found: dict[str, Any]) -> str:
    """A line of what storing states in 8 bits loses, from a manifest's `quantisation`."""
    parts = [f"{state} {error:.2%}" for state, error in found["relative_rms"].items()]
    worst, kl, agreement = max(found["max_relative_row"].values()), found["kl_divergence"], found["top1_agreement"]
    return (
        f"relative error {', '.join(parts)}, of a row at most {worst:.2%}; predictions differ by {kl:.2g} nats (KL), "
        f"top-1 the same at {agreement:.1%} of {found['positions']:,} positions"
    )
