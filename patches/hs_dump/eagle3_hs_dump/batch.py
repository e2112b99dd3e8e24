"""Which rows of a forward pass belong to which sequence."""

from typing import Any, NamedTuple

from .placement import Placement

PREFILL_MODES = ("EXTEND", "MIXED", "SPLIT_PREFILL")
"""By name: `ForwardMode.is_extend()` also covers speculative verification."""


class Segment(NamedTuple):
    """Consecutive rows of one sequence."""

    sequence: int
    """Position in the placement."""
    start: int
    """Position in the sequence of the first row."""
    row: int
    """First row in the batch, or in the block that it was copied to."""
    count: int


class Batch(NamedTuple):
    input_ids: Any
    """`[>= T]`, on the device, as they entered the model runner: a multimodal wrapper hides them from what follows."""
    segments: list[Segment]
    rows: int
    """Rows of the batch, T."""
    split: bool
    """A layer-split prefill, which reaches the logits only in its last pass."""


def read_batch(forward_batch: Any, placement: Placement) -> Batch | None:
    """The batch's rows that are to be dumped; None when there are none."""
    mode = forward_batch.forward_mode.name
    if mode not in PREFILL_MODES or not forward_batch.rids:
        return None
    segments = []
    row = 0
    for rid, prefix, count in zip(
        forward_batch.rids, forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu, strict=False
    ):
        sequence = placement.find(rid)
        if sequence is not None and count > 0:
            segments.append(Segment(sequence, int(prefix), row, int(count)))
        row += int(count)
    if not segments:
        return None
    return Batch(forward_batch.input_ids, segments, row, mode == "SPLIT_PREFILL")


def cut(segments: list[Segment], rows: int) -> list[list[Segment]]:
    """Packs segments into blocks of at most `rows` rows; a longer one continues in the next block.

    Rows keep their place in the batch. Rows between two segments that belong to somebody else are not copied, so a
    block is filled by runs: see `runs`.
    """
    blocks: list[list[Segment]] = [[]]
    room = rows
    for sequence, start, row, count in segments:
        done = 0
        while done < count:
            if room == 0:
                blocks.append([])
                room = rows
            take = min(room, count - done)
            blocks[-1].append(Segment(sequence, start + done, row + done, take))
            done += take
            room -= take
    return blocks


def runs(segments: list[Segment]) -> list[tuple[int, int]]:
    """Maximal runs (first row, rows) of adjacent segments, so that a batch is copied with few large copies."""
    out: list[tuple[int, int]] = []
    for segment in segments:
        if out and out[-1][0] + out[-1][1] == segment.row:
            out[-1] = (out[-1][0], out[-1][1] + segment.count)
        else:
            out.append((segment.row, segment.count))
    return out
