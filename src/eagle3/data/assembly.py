"""The dataset while it grows: what is committed, what is missing, and shards finished as they fill."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from eagle3.data.ledger import Committed
from eagle3.data.manifest import Manifest, ShardEntry
from eagle3.data.placement import Placement, ShardPlan
from eagle3.data.shards import open_shard
from eagle3.data.skeleton import PARTIAL, create_skeleton, finalise, index_sha256, row_checksums, skeleton_matches
from eagle3.data.space import disk_error
from eagle3.errors import DataError

QUARANTINED = -1


class Assembly:
    """Used from one thread; shards are made to last in a second one."""

    def __init__(self, folder: Path, placement: Placement, manifest: Manifest) -> None:
        self.folder = folder
        self.placement = placement
        self.manifest = manifest
        states = len(manifest.states)
        self.settled = np.zeros(len(placement), bool)
        """[m]: committed or quarantined."""
        self.checksums = np.zeros((len(placement), states), np.int64)
        self.done_sequences = 0
        self.quarantined: dict[int, str] = {}
        """Placed sequence -> why."""
        self.redone: list[str] = []
        """What `resume` found damaged, to be told."""
        self._of_id = {int(s): i for i, s in enumerate(placement.sample_ids)}
        self._open = [plan.layout.sequences for plan in placement.shards]
        self._ready: set[int] = set()
        self._finishing: dict[int, Future[ShardEntry]] = {}
        self._thread = ThreadPoolExecutor(1, "finish-shard")

    @property
    def done_tokens(self) -> int:
        return int(self.placement.length[self.settled].sum())

    def missing(self) -> Iterator[int]:
        """Placed sequences still to be sent, in order."""
        return iter(np.nonzero(~self.settled)[0].tolist())

    def resume(self, committed: Iterator[Committed]) -> None:
        """Takes what earlier runs left: finished shards that look whole, sequences whose rows have their checksum."""
        last = {entry.sample_id: entry for entry in committed}
        listed = {shard.file: shard for shard in self.manifest.shards}
        for number, plan in enumerate(self.placement.shards):
            shard = listed.get(plan.file)
            if shard is not None:
                reason = self._damage(plan, shard)
                if reason is None:
                    self._take_finished(number, plan)
                    continue
                self.redone.append(f"{plan.file} {reason}: its {plan.layout.sequences} sequences are extracted again")
                del listed[plan.file]
                (self.folder / plan.file).unlink(missing_ok=True)
            self._take_partial(number, plan, last)
        self.manifest.replace(list(listed.values()))
        self.manifest.quarantined = {str(self._id(i)): reason for i, reason in self.quarantined.items()}

    def _damage(self, plan: ShardPlan, shard: ShardEntry) -> str | None:
        """What is visibly wrong with a finished shard; its rows are left to `verify`."""
        try:
            with open_shard(self.folder / plan.file, plan.layout) as file:
                return None if index_sha256(file.fileno(), plan.layout) == shard.sha256 else "has changed"
        except DataError:
            return "is missing or truncated"

    def _take_finished(self, number: int, plan: ShardPlan) -> None:
        for i in plan.sequences:
            self.settled[i] = True
            self.done_sequences += 1
            if str(self._id(i)) in self.manifest.quarantined:
                self.quarantined[i] = self.manifest.quarantined[str(self._id(i))]
        self._open[number] = 0

    def _take_partial(self, number: int, plan: ShardPlan, last: dict[int, Committed]) -> None:
        partial = self.folder / (plan.file + PARTIAL)
        if (self.folder / plan.file).exists():  # finished, but the run ended before the manifest said so
            (self.folder / plan.file).rename(partial)
        if not partial.exists():
            return
        if not skeleton_matches(partial, plan.layout, self.placement.index(plan)):
            partial.unlink()
            return
        self._ready.add(number)
        descriptor = os.open(partial, os.O_RDONLY)
        try:
            for i in plan.sequences:
                entry = last.get(self._id(i))
                row, length = int(self.placement.row[i]), int(self.placement.length[i])
                if entry is None or entry.bad is not None or entry.length != length:
                    continue
                if row_checksums(descriptor, plan.layout, row, length) == entry.crc:
                    self.checksums[i] = entry.crc
                    self._settle(i)
        finally:
            os.close(descriptor)

    def make_room(self, i: int) -> None:
        """Makes the file that sequence i goes to, unless it is there. Raises DataError when the disk refuses."""
        number = int(self.placement.shard[i])
        if number in self._ready:
            return
        plan = self.placement.shards[number]
        path = self.folder / (plan.file + PARTIAL)
        try:
            create_skeleton(path, plan.layout, self.placement.index(plan))
        except OSError as error:
            raise disk_error(error, path) from error
        self._ready.add(number)

    def accept(self, entry: Committed) -> bool:
        """Counts a committed sequence; False for one that is not of this dataset, or was counted before."""
        i = self._of_id.get(entry.sample_id)
        if i is None or self.settled[i]:
            return False
        if entry.length != self.placement.length[i] or len(entry.crc) != len(self.manifest.states):
            raise DataError(
                f"Sequence {entry.sample_id} has {self.placement.length[i]} tokens, and the server's plugin wrote "
                f"{entry.length}. The plugin does not fit this version: check PYTHONPATH of the server."
            )
        if entry.bad is not None:
            self.quarantine(i, entry.bad)
        else:
            self.checksums[i] = entry.crc
            self._settle(i)
        return True

    def quarantine(self, i: int, reason: str) -> None:
        """Gives a sequence up: its rows stay unused."""
        self.quarantined[i] = reason
        self.manifest.quarantined[str(self._id(i))] = reason
        self.checksums[i] = QUARANTINED
        self._settle(i)

    def _settle(self, i: int) -> None:
        number = int(self.placement.shard[i])
        self.settled[i] = True
        self.done_sequences += 1
        self._open[number] -= 1
        if self._open[number] == 0:
            plan = self.placement.shards[number]
            span = slice(plan.first, plan.first + plan.layout.sequences)
            partial = self.folder / (plan.file + PARTIAL)
            sums = self.checksums[span].copy()
            self._finishing[number] = self._thread.submit(finalise, partial, plan.layout, sums)

    def collect(self, wait: bool = False) -> None:
        """Lists shards that have been made to last in the manifest; with `wait`, all that are full."""
        ready = [n for n, future in self._finishing.items() if wait or future.done()]
        for number in ready:
            future = self._finishing.pop(number)
            try:
                self.manifest.add(future.result())
            except OSError as error:
                raise disk_error(error, self.folder / self.placement.shards[number].file) from error
        if ready:
            self.manifest.save(self.folder)

    def close(self) -> None:
        """Lets shards that are full be finished; errors were or will be met by the next run."""
        self._thread.shutdown(wait=True)

    def _id(self, i: int) -> int:
        return int(self.placement.sample_ids[i])
