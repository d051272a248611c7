"""Helpers with which situations inspect a layout."""

from collections.abc import Callable, Iterator

from harness.case import Case
from harness.plan import Plan, Span, Stream


def cuts(case: Case, layout: Plan) -> Iterator[tuple[Span, int, frozenset[int]]]:
    """Yield each row, a position in it at which a rank begins, and its supervised positions."""
    for stream in layout.streams:
        for span in stream.spans:
            begins = [b - span.start for b in stream.boundaries if span.start <= b <= span.stop]
            if begins:
                targets = frozenset(case.rows[span.row].supervised())
                yield from ((span, cut, targets) for cut in begins)


def any_stream(layout: Plan, predicate: Callable[[Stream], bool]) -> bool:
    return any(predicate(stream) for stream in layout.streams)


def terms_by_replica(case: Case, layout: Plan) -> list[set[int]]:
    """Return for each replica the different numbers of loss terms of its micro-batches."""
    counts: list[set[int]] = [set() for _ in range(case.dp)]
    for stream in layout.streams:
        counts[stream.replica].add(terms(case, stream))
    return counts


def terms(case: Case, stream: Stream) -> int:
    """Return the number of loss terms of a stream."""
    return sum(len(case.rows[span.row].supervised()) for span in stream.spans)


def length(span: Span) -> int:
    return span.stop - span.start
