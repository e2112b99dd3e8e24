"""The dataset while it grows: what is committed, what is missing, and shards finished as they fill."""

import os
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from eagle3.data.checked import Checked, Finished, Progress, damages
from eagle3.data.ledger import Committed
from eagle3.data.manifest import Manifest, ShardEntry
from eagle3.data.placement import Placement, ShardPlan
from eagle3.data.skeleton import PARTIAL, checksum_table, create_skeleton, finalise, row_checksums, skeleton_matches
from eagle3.errors import DataError
from eagle3.files.disk import disk_error

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
        self.checked = Checked(folder)
        self._of_id = {int(s): i for i, s in enumerate(placement.sample_ids)}
        self._open = [plan.layout.sequences for plan in placement.shards]
        self._ready: set[int] = set()
        self._finishing: dict[int, Future[ShardEntry]] = {}
        self._thread = ThreadPoolExecutor(1, "finish-shard")

    @property
    def done_tokens(self) -> int:
        return int(self.placement.length[self.settled].sum())

    def missing(self) -> list[int]:
        """Placed sequences still to be sent, in order."""
        return np.nonzero(~self.settled)[0].tolist()

    def resume(
        self, committed: Iterator[Committed], on_progress: Progress | None = None, redo: Collection[int] = ()
    ) -> None:
        """Takes what earlier runs left: whole shards, and sequences whose rows have their checksum.

        Args:
            on_progress: called with (bytes read, bytes to be read) where finished shards must be read again.
            redo: sample ids that are to be made again, whatever is there of them.
        """
        redo = frozenset(redo)
        last = {entry.sample_id: entry for entry in committed if entry.sample_id not in redo}
        listed = {shard.file: shard for shard in self.manifest.shards}
        finished = [self._finished(plan, listed[plan.file]) for plan in self.placement.shards if plan.file in listed]
        damaged = damages(finished, on_progress)
        for plan in self.placement.shards:
            if plan.file in listed and not redo.isdisjoint(map(self._id, plan.sequences)):
                damaged.setdefault(plan.file, "holds sequences that are to be made again")
        whole = {name: listed[name] for shard in finished if (name := shard.path.name) not in damaged}
        self.manifest.replace(list(whole.values()))
        if damaged:  # from here on they do not exist, whatever happens to this run
            self.manifest.complete = False
            self.manifest.save(self.folder)
        for number, plan in enumerate(self.placement.shards):
            if plan.file in whole:
                self._take_finished(number, plan)
                continue
            if plan.file in damaged:
                self._reopen(plan)
            self._take_partial(number, plan, last, redo)
            if plan.file in damaged:
                self.redone.append(self._told(number, plan, damaged[plan.file]))
        self.manifest.quarantined = {str(self._id(i)): reason for i, reason in self.quarantined.items()}
        self.checked.add(whole)
        self.collect(wait=True)

    def _finished(self, plan: ShardPlan, entry: ShardEntry) -> Finished:
        span = slice(plan.first, plan.first + plan.layout.sequences)
        return Finished(
            self.folder / plan.file,
            plan.layout,
            entry.sha256,
            rows=self.placement.row[span],
            lengths=self.placement.length[span],
            unused=np.array([str(self._id(i)) in self.manifest.quarantined for i in plan.sequences], bool),
            known=self.checked.knows(plan.file),
        )

    def _reopen(self, plan: ShardPlan) -> None:
        """Makes a damaged shard an unfinished one; what is known of it in advance is written anew."""
        final = self.folder / plan.file
        if not final.exists():
            return
        if final.stat().st_size != plan.layout.size:  # its checksums were at the end
            final.unlink()
            return
        with final.open("r+b") as file:
            for offset, blob in self.placement.index(plan).blobs(plan.layout):
                file.seek(offset)
                file.write(blob)

    def _told(self, number: int, plan: ShardPlan, wrong: str) -> str:
        lost = [self._id(i) for i in plan.sequences if not self.settled[i]]
        if not lost:
            return f"{plan.file} {wrong}: it is mended, no sequence was lost"
        named = f" ({', '.join(map(str, lost[:5]))}{', ...' if len(lost) > 5 else ''})"
        return f"{plan.file} {wrong}: {len(lost)} of its {plan.layout.sequences} sequences are extracted again{named}"

    def _take_finished(self, number: int, plan: ShardPlan) -> None:
        for i in plan.sequences:
            self.settled[i] = True
            self.done_sequences += 1
            if str(self._id(i)) in self.manifest.quarantined:
                self.quarantined[i] = self.manifest.quarantined[str(self._id(i))]
        self._open[number] = 0

    def _take_partial(self, number: int, plan: ShardPlan, last: dict[int, Committed], redo: frozenset[int]) -> None:
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
            # A shard that was finished once holds its checksums itself; elsewhere they are zero.
            for i, own in zip(plan.sequences, checksum_table(descriptor, plan.layout).tolist(), strict=True):
                if self._id(i) in redo:
                    continue
                entry = last.get(self._id(i))
                row, length = int(self.placement.row[i]), int(self.placement.length[i])
                reason = self.manifest.quarantined.get(str(self._id(i)))
                if reason is not None and set(own) == {QUARANTINED}:
                    self.quarantine(i, reason)
                    continue
                known = [own] if any(own) else []
                if entry is not None and entry.bad is None and entry.length == length:
                    known.append(entry.crc)
                if known and (sums := row_checksums(descriptor, plan.layout, row, length)) in known:
                    self.checksums[i] = sums
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
            try:
                self.manifest.add(self._finishing[number].result())
            except OSError as error:  # stays on the list: it is met again whenever somebody asks
                raise disk_error(error, self.folder / self.placement.shards[number].file) from error
            del self._finishing[number]
        if ready:
            self.manifest.save(self.folder)
            self.checked.add(self.placement.shards[number].file for number in ready)

    def close(self) -> None:
        """Lets shards that are full be finished; errors were or will be met by the next run."""
        self._thread.shutdown(wait=True)

    def _id(self, i: int) -> int:
        return int(self.placement.sample_ids[i])
