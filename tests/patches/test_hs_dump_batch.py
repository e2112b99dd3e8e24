"""Rows to sequences, and batches to blocks."""

import pytest
from eagle3_hs_dump import DumpError
from eagle3_hs_dump.batch import Segment, cut, runs
from eagle3_hs_dump.placement import read_placement
from hypothesis import given
from hypothesis import strategies as st
from tests.e2e.placing import NONCE, place


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=12), st.integers(1, 30))
def test_blocks_hold_every_row_once(lengths_and_gaps, rows):
    """Whatever the lengths, and rows of other clients in between."""
    segments, row = [], 0
    for sequence, (length, gap) in enumerate(lengths_and_gaps):
        segments.append(Segment(sequence, 0, row, length))
        row += length + gap
    blocks = cut(segments, rows)
    wanted = [(s.sequence, s.start + k, s.row + k) for s in segments for k in range(s.count)]
    assert [(s.sequence, s.start + k, s.row + k) for block in blocks for s in block for k in range(s.count)] == wanted
    for block in blocks:
        assert 0 < sum(s.count for s in block) <= rows
        copied = [first + k for first, count in runs(block) for k in range(count)]
        assert copied == [s.row + k for s in block for k in range(s.count)]


def test_adjacent_rows_are_copied_at_once():
    assert runs([Segment(0, 0, 0, 5), Segment(1, 0, 5, 3), Segment(2, 0, 10, 2)]) == [(0, 8), (10, 2)]


def test_only_this_dataset_s_requests_are_found(tmp_path):
    placed = place(tmp_path, {7: [1, 2], 9: [3]}, [1], 8, 1)
    placement = read_placement(placed.work)
    assert placement.find(f"eagle3-{NONCE}-9") == 1
    assert placement.find("eagle3-anothernonce-9") is None
    assert placement.find("HEALTH_CHECK_1") is None
    with pytest.raises(DumpError, match="not in its placement"):
        placement.find(f"eagle3-{NONCE}-8")
