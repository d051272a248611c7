"""Computes which rank holds which token when the sequence is cut into contiguous shards.

Plans are integers only, without tensors or processes. One micro-batch of one replica has T real
tokens in one stream, and P pad tokens at its end so that sp divides T + P. Rank r of the
sequence-parallel group holds the r-th piece of L = (T + P) / sp tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from harness.case import Case


@dataclass(frozen=True, slots=True)
class Span:
    """A row inside a stream, at the stream positions from start up to but without stop."""

    row: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Stream:
    """One micro-batch of one replica: its rows end to end, as one sequence of tokens."""

    replica: int
    micro_batch: int
    spans: tuple[Span, ...]
    sp: int

    @property
    def length(self) -> int:
        """T, the number of real tokens."""
        return self.spans[-1].stop

    @property
    def pad(self) -> int:
        """P, the number of pad tokens at the end."""
        return -self.length % self.sp

    @property
    def local_length(self) -> int:
        """L, the number of tokens on each rank."""
        return (self.length + self.pad) // self.sp

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The stream positions of the first token of every rank but rank 0."""
        return tuple(self.local_length * rank for rank in range(1, self.sp))

    def owner(self, position: int) -> int:
        """Return the rank within the group that holds a stream position."""
        return position // self.local_length


@dataclass(frozen=True, slots=True)
class Plan:
    """All streams of a step, by replica and then by micro-batch."""

    streams: tuple[Stream, ...]

    def supervised(self, case: Case, stream: Stream) -> Iterator[int]:
        """Yield the stream positions that have a loss term: their *next* token is a target."""
        for span in stream.spans:
            for target in case.rows[span.row].supervised():
                yield span.start + target - 1

    def live_boundary_labels(self, case: Case) -> int:
        """Count the loss terms whose label is on the next rank, where most bugs show."""
        return sum(
            stream.owner(position) != stream.owner(position + 1)
            for stream in self.streams
            for position in self.supervised(case, stream)
        )


def plan(case: Case) -> Plan:
    """Return the layout that `Case` describes: rows dealt to replicas in turn, cut in order."""
    return Plan(
        tuple(
            _stream(case, replica, micro_batch)
            for replica in range(case.dp)
            for micro_batch in range(case.micro_batches)
        )
    )


def _stream(case: Case, replica: int, micro_batch: int) -> Stream:
    rows = range(replica, len(case.rows), case.dp)
    share, larger = divmod(len(rows), case.micro_batches)
    first = micro_batch * share + min(micro_batch, larger)
    spans, start = [], 0
    for row in rows[first : first + share + (micro_batch < larger)]:
        spans.append(Span(row, start, start + len(case.rows[row])))
        start = spans[-1].stop
    return Stream(replica, micro_batch, tuple(spans), case.sp)
