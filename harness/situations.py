"""The corners where sequence parallelism breaks, as named predicates on a case.

A correct path and a wrong one differ only on some batches. Counting how often a run met each
corner tells whether it could have seen anything.
"""

from collections.abc import Callable

from harness.case import Case
from harness.plan import Stream, plan

Predicate = Callable[[Case], bool]
SITUATIONS: dict[str, Predicate] = {}


def situation(name: str) -> Callable[[Predicate], Predicate]:
    """Register a predicate under a name that reads well in a table."""

    def register(predicate: Predicate) -> Predicate:
        SITUATIONS[name] = predicate
        return predicate

    return register


def situations_of(case: Case) -> list[str]:
    """Every corner that a case is in."""
    return [name for name, predicate in SITUATIONS.items() if predicate(case)]


def _any_stream(case: Case, predicate: Callable[[Stream], bool]) -> bool:
    return any(predicate(stream) for stream in plan(case).streams)


@situation("boundary inside a row, supervised on both sides")
def boundary_inside_row(case: Case) -> bool:
    def inside(stream: Stream) -> bool:
        for span in stream.spans:
            targets = {span.start + t for t in case.rows[span.row].supervised()}
            for edge in stream.boundaries:
                if (
                    span.start < edge < span.stop
                    and edge in targets
                    and any(t < edge for t in targets)
                ):
                    return True
        return False

    return _any_stream(case, inside)


@situation("boundary at a row's end")
def boundary_at_row_end(case: Case) -> bool:
    return _any_stream(
        case, lambda s: any(span.stop in s.boundaries and span.stop < s.length for span in s.spans)
    )


@situation("row over three or more shards")
def row_over_three_shards(case: Case) -> bool:
    return _any_stream(
        case, lambda s: any(s.owner(span.stop - 1) - s.owner(span.start) >= 2 for span in s.spans)
    )


@situation("one-token row")
def one_token_row(case: Case) -> bool:
    return any(len(row) == 1 for row in case.rows)


@situation("single row")
def single_row(case: Case) -> bool:
    return len(case.rows) == 1


@situation("T divisible by sp")
def aligned(case: Case) -> bool:
    return case.sp > 1 and _any_stream(case, lambda s: s.pad == 0)


@situation("T not divisible by sp")
def unaligned(case: Case) -> bool:
    return _any_stream(case, lambda s: s.pad > 0)


@situation("pad of two or more")
def pad_of_two(case: Case) -> bool:
    return _any_stream(case, lambda s: s.pad >= 2)


@situation("T < sp")
def shorter_than_sp(case: Case) -> bool:
    return _any_stream(case, lambda s: s.length < s.sp)


@situation("rank that holds only padding")
def rank_of_padding(case: Case) -> bool:
    return _any_stream(case, lambda s: s.local_length * (s.sp - 1) >= s.length)


@situation("rank with no supervised token")
def rank_without_supervision(case: Case) -> bool:
    layout = plan(case)
    return any(
        len({stream.owner(t) for t in layout.supervised(case, stream)}) < case.sp
        for stream in layout.streams
    )


@situation("no supervised token at all")
def nothing_supervised(case: Case) -> bool:
    return not any(row.supervised() for row in case.rows)


@situation("mask with holes")
def mask_with_holes(case: Case) -> bool:
    return any("0" in row.mask.strip("0") for row in case.rows)


@situation("first token of a row masked in")
def first_token_masked_in(case: Case) -> bool:
    return any(row.mask[0] == "1" for row in case.rows)


@situation("left-padded row")
def left_padded(case: Case) -> bool:
    longest = max(len(row) for row in case.rows)
    return any(row.side == "left" and len(row) < longest for row in case.rows)


@situation("real token equal to the pad id")
def real_pad_id(case: Case) -> bool:
    return any(case.pad_id in case.ids_of(row) for row in range(len(case.rows)))


@situation("kv heads < sp")
def fewer_kv_heads_than_ranks(case: Case) -> bool:
    return case.kv_heads < case.sp


@situation("one head per rank")
def one_head_per_rank(case: Case) -> bool:
    return case.sp > 1 and case.heads == case.sp


@situation("dp >= 2 with dp != sp")
def uneven_mesh(case: Case) -> bool:
    return case.dp >= 2 and case.sp >= 2 and case.dp != case.sp


@situation("several micro-batches")
def several_micro_batches(case: Case) -> bool:
    return case.micro_batches > 1


@situation("micro-batch with nothing supervised")
def empty_micro_batch(case: Case) -> bool:
    layout = plan(case)
    return case.micro_batches > 1 and any(
        not any(True for _ in layout.supervised(case, stream)) for stream in layout.streams
    )
