"""Which rank holds what under contiguous sequence sharding: integers, no tensor, no process.

For one micro-batch of one replica: T real tokens in one stream, P pad tokens at its end so that
sp divides T + P, and rank r of the sequence-parallel group takes L = (T + P) / sp of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from harness.case import Case


@dataclass(frozen=True, slots=True)
class Span:
    """A row inside a stream: stream positions start to stop."""

    row: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Stream:
    """One micro-batch of one replica, laid out flat."""

    replica: int
    micro_batch: int
    spans: tuple[Span, ...]
    sp: int

    @property
    def length(self) -> int:
        """T, the real tokens."""
        return self.spans[-1].stop

    @property
    def pad(self) -> int:
        """P, the tokens appended at the end."""
        return -self.length % self.sp

    @property
    def local_length(self) -> int:
        """L, the tokens on each rank."""
        return (self.length + self.pad) // self.sp

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Stream positions at which a new rank begins."""
        return tuple(self.local_length * rank for rank in range(1, self.sp))

    def owner(self, position: int) -> int:
        """The rank within the group that holds a stream position."""
        return position // self.local_length


@dataclass(frozen=True, slots=True)
class Plan:
    """Every stream of a step."""

    streams: tuple[Stream, ...]

    def supervised(self, case: Case, stream: Stream) -> Iterator[int]:
        """Stream positions whose *next* token is a target, that is, which carry a loss term."""
        for span in stream.spans:
            for target in case.rows[span.row].supervised():
                yield span.start + target - 1

    def live_boundary_labels(self, case: Case) -> int:
        """Loss terms whose label lives on the next rank: where sequence parallelism breaks."""
        return sum(
            stream.owner(position) != stream.owner(position + 1)
            for stream in self.streams
            for position in self.supervised(case, stream)
        )


def plan(case: Case) -> Plan:
    """The layout that `Case` promises: rows dealt to replicas in turn, then cut in order."""
    return Plan(
        tuple(
            _stream(case, replica, micro_batch)
            for replica in range(case.dp)
            for micro_batch in range(case.micro_batches)
        )
    )


def _stream(case: Case, replica: int, micro_batch: int) -> Stream:
    mine = range(replica, len(case.rows), case.dp)
    share, larger = divmod(len(mine), case.micro_batches)
    first = micro_batch * share + min(micro_batch, larger)
    spans, at = [], 0
    for row in mine[first : first + share + (micro_batch < larger)]:
        spans.append(Span(row, at, at + len(case.rows[row])))
        at = spans[-1].stop
    return Stream(replica, micro_batch, tuple(spans), case.sp)
