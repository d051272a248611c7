from itertools import pairwise

import numpy as np
from hypothesis import given

from harness.case import Case
from harness.generation import cases
from harness.plan import Stream, plan


def tokens_of(case: Case, stream: Stream) -> list[int]:
    """Global token numbers in stream order."""
    return [
        case.offsets[span.row] + t for span in stream.spans for t in range(span.stop - span.start)
    ]


@given(cases(max_length=30))
def test_every_token_is_in_one_place_of_one_stream(case: Case) -> None:
    held = [token for stream in plan(case).streams for token in tokens_of(case, stream)]
    assert sorted(held) == list(range(case.tokens))


@given(cases(max_length=30))
def test_a_stream_is_its_rows_end_to_end(case: Case) -> None:
    for stream in plan(case).streams:
        assert stream.spans[0].start == 0
        assert all(one.stop == other.start for one, other in pairwise(stream.spans))
        assert all(span.stop - span.start == len(case.rows[span.row]) for span in stream.spans)
        assert stream.length == len(tokens_of(case, stream))


@given(cases(max_length=30))
def test_ranks_hold_equal_shares_and_padding_is_as_short_as_can_be(case: Case) -> None:
    for stream in plan(case).streams:
        assert 0 <= stream.pad < case.sp
        assert stream.local_length * case.sp == stream.length + stream.pad
        owners = [stream.owner(position) for position in range(stream.length + stream.pad)]
        assert owners == sorted(owners)
        assert [owners.count(rank) for rank in range(case.sp)] == [stream.local_length] * case.sp
        steps = [p for p in range(1, len(owners)) if owners[p] != owners[p - 1]]
        assert list(stream.boundaries) == steps


@given(cases(max_length=30))
def test_rows_are_dealt_in_turn_and_then_cut_in_order(case: Case) -> None:
    streams = iter(plan(case).streams)
    for replica in range(case.dp):
        mine = np.arange(len(case.rows))[replica :: case.dp]
        # numpy makes the first pieces the larger ones, as `Case` promises.
        for micro_batch, rows in enumerate(np.array_split(mine, case.micro_batches)):
            stream = next(streams)
            assert (stream.replica, stream.micro_batch) == (replica, micro_batch)
            assert [span.row for span in stream.spans] == rows.tolist()
    assert list(streams) == []


@given(cases(max_length=30))
def test_live_boundary_labels_are_what_counting_by_hand_gives(case: Case) -> None:
    live = 0
    for stream in plan(case).streams:
        # Every stream position as (row, whether it is a target, rank), rank by rank.
        slots = [
            (span.row, bit == "1") for span in stream.spans for bit in case.rows[span.row].mask
        ]
        size = -(-len(slots) // case.sp)
        ranked = [(row, target, at // size) for at, (row, target) in enumerate(slots)]
        for (row, _, rank), (next_row, target, next_rank) in pairwise(ranked):
            live += target and row == next_row and rank != next_rank
    assert plan(case).live_boundary_labels(case) == live


@given(cases(max_length=30))
def test_what_is_supervised_is_what_the_rows_say(case: Case) -> None:
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
