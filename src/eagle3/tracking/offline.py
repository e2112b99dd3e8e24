"""Reads a run that W&B wrote offline: `offline-run-*/run-*.wandb`, for which W&B has no public reader.

The file is a LevelDB log (https://github.com/google/leveldb/blob/main/doc/log_format.md) after a 7-byte header: blocks
of 32 KiB, each a row of fragments (crc32, length, type, data), each record one protobuf `Record`. The checksum is a
plain crc32 over type and data, unlike LevelDB's.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.errors import DataError

_HEADER = b":W&B"
_HEADER_BYTES = 7
_BLOCK = 32 * 1024
_FRAGMENT = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass
class OfflineArtifact:
    name: str
    type: str
    aliases: list[str]
    metadata: dict[str, Any]
    files: dict[str, Path]
    """Path inside the artifact -> the file on this disk that a sync will upload."""


@dataclass
class OfflineRun:
    """What a sync will show of a run. `exit_code` is None when the run was never finished."""

    run_id: str = ""
    project: str = ""
    entity: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    git_commit: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    """Metric name or glob -> the metric that is its x axis."""
    system: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[OfflineArtifact] = field(default_factory=list)
    exit_code: int | None = None

    def series(self, metric: str) -> list[Any]:
        """All values of one metric, in the order of logging."""
        return [row[metric] for row in self.history if metric in row]


def records(data: bytes) -> Iterator[bytes]:
    """The log's records, up to a torn or damaged one: a killed process leaves such a tail."""
    position, parts = _HEADER_BYTES, []
    while position + _FRAGMENT.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _FRAGMENT.size:  # too short for a fragment's head: padding
            position += left
            continue
        checksum, length, kind = _FRAGMENT.unpack_from(data, position)
        body = data[position + _FRAGMENT.size : position + _FRAGMENT.size + length]
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or len(body) < length:
            return
        if zlib.crc32(bytes([kind]) + body) != checksum:
            return
        position += _FRAGMENT.size + length
        parts = [body] if kind in (_FULL, _FIRST) else [*parts, body]
        if kind in (_FULL, _LAST):
            yield b"".join(parts)


def find_runs(folder: Path) -> list[Path]:
    """The .wandb files under a run folder (or its wandb/ folder), oldest first."""
    return sorted(folder.glob("**/run-*.wandb"), key=lambda path: path.stat().st_mtime)


def read_offline(path: Path) -> OfflineRun:
    """Reads one .wandb file, or the newest below a folder.

    Raises:
        DataError: there is none, or it is not a W&B file.
    """
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    if not path.is_file():
        found = find_runs(path)
        if not found:
            raise DataError(f"{path}: no W&B run in it (run-*.wandb)")
        path = found[-1]
    data = path.read_bytes()
    if not data.startswith(_HEADER):
        raise DataError(f"{path}: not a W&B file: it does not begin with {_HEADER.decode()!r}")
    run = OfflineRun()
    for raw in records(data):
        record = Record.FromString(raw)
        _apply(run, record.WhichOneof("record_type"), record)
    return run


def _apply(run: OfflineRun, kind: str | None, record: Any) -> None:
    if kind == "run":
        head = record.run
        run.run_id, run.project, run.entity, run.name = head.run_id, head.project, head.entity, head.display_name
        run.group, run.job_type, run.tags = head.run_group, head.job_type, list(head.tags)
        run.git_commit = head.git.commit
        _update(run.config, head.config)
    elif kind == "config":
        _update(run.config, record.config)
    elif kind == "summary":
        _update(run.summary, record.summary)
    elif kind == "history":
        row: dict[str, Any] = {}
        _set_items(row, record.history.item)
        run.history.append(row)
    elif kind == "metric":
        run.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
    elif kind == "stats":
        run.system.append({item.key: json.loads(item.value_json) for item in record.stats.item})
    elif kind == "artifact":
        found = record.artifact
        files = {entry.path: Path(entry.local_path) for entry in found.manifest.contents}
        metadata = json.loads(found.metadata or "{}")
        run.artifacts.append(OfflineArtifact(found.name, found.type, list(found.aliases), metadata, files))
    elif kind == "exit":
        run.exit_code = record.exit.exit_code


def _path(item: Any) -> list[str]:
    return list(item.nested_key) or [item.key]


def _set_items(tree: dict[str, Any], items: Iterable[Any]) -> None:
    for item in items:
        *parents, leaf = _path(item)
        node = tree
        for parent in parents:
            child = node.get(parent)
            if not isinstance(child, dict):
                child = node[parent] = {}
            node = child
        node[leaf] = json.loads(item.value_json)


def _update(tree: dict[str, Any], change: Any) -> None:
    _set_items(tree, change.update)
    for item in change.remove:
        *parents, leaf = _path(item)
        node: Any = tree
        for parent in parents:
            node = node.get(parent, {})
        node.pop(leaf, None)
