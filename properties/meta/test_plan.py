"""The layout of a plan is what `Case` describes, checked against simpler computations."""

from itertools import pairwise

import numpy as np
from hypothesis import given

from harness.case import Case
from harness.generation import cases
from harness.plan import Stream, plan


def tokens_of(case: Case, stream: Stream) -> list[int]:
    """Return global token numbers in stream order."""
    return [
        case.offsets[span.row] + t for span in stream.spans for t in range(span.stop - span.start)
    ]


@given(cases(max_length=30))
def test_every_token_occurs_exactly_once_in_all_streams(case: Case) -> None:
    held = [token for stream in plan(case).streams for token in tokens_of(case, stream)]
    assert sorted(held) == list(range(case.tokens))


@given(cases(max_length=30))
def test_a_stream_is_its_rows_end_to_end(case: Case) -> None:
    for stream in plan(case).streams:
        assert stream.spans[0].start == 0
        assert all(span.stop == following.start for span, following in pairwise(stream.spans))
        assert all(span.stop - span.start == len(case.rows[span.row]) for span in stream.spans)
        assert stream.length == len(tokens_of(case, stream))


@given(cases(max_length=30))
def test_ranks_hold_equal_shares_with_the_least_possible_padding(case: Case) -> None:
    for stream in plan(case).streams:
        assert 0 <= stream.pad < case.sp
        assert stream.local_length * case.sp == stream.length + stream.pad
        owners = [stream.owner(position) for position in range(stream.length + stream.pad)]
        assert owners == sorted(owners)
        assert [owners.count(rank) for rank in range(case.sp)] == [stream.local_length] * case.sp
        steps = [p for p in range(1, len(owners)) if owners[p] != owners[p - 1]]
        assert list(stream.boundaries) == steps


@given(cases(max_length=30))
def test_rows_are_dealt_to_replicas_in_turn_and_cut_into_micro_batches_in_order(
    case: Case,
) -> None:
    streams = iter(plan(case).streams)
    for replica in range(case.dp):
        rows_of_replica = np.arange(len(case.rows))[replica :: case.dp]
        # numpy makes the first pieces the larger ones, as `Case` describes.
        for micro_batch, rows in enumerate(np.array_split(rows_of_replica, case.micro_batches)):
            stream = next(streams)
            assert (stream.replica, stream.micro_batch) == (replica, micro_batch)
            assert [span.row for span in stream.spans] == rows.tolist()
    assert list(streams) == []


@given(cases(max_length=30))
def test_live_boundary_labels_equal_a_count_over_all_stream_positions(case: Case) -> None:
    live = 0
    for stream in plan(case).streams:
        # Row and mask bit of each stream position, then row, mask bit and rank.
        slots = [
            (span.row, bit == "1") for span in stream.spans for bit in case.rows[span.row].mask
        ]
        size = -(-len(slots) // case.sp)
        ranked = [(row, bit, position // size) for position, (row, bit) in enumerate(slots)]
        for (row, _, rank), (next_row, next_bit, next_rank) in pairwise(ranked):
            live += next_bit and row == next_row and rank != next_rank
    assert plan(case).live_boundary_labels(case) == live


@given(cases(max_length=30))
def test_supervised_positions_are_those_before_the_targets_of_the_rows(case: Case) -> None:
    layout = plan(case)
    found = {
        tokens_of(case, stream)[position] + 1
        for stream in layout.streams
        for position in layout.supervised(case, stream)
    }
    assert found == {
        case.offsets[r] + t
        for r, row in enumerate(case.rows)
        for t, bit in enumerate(row.mask)
        if bit == "1" and t > 0
    }
