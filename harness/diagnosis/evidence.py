"""What is known of a failure: both traces, and where every token stood.

Legend: n any token of the case by its number, T tokens of one stream in order.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from harness.case import Case
from harness.compare import Comparison, alike
from harness.plan import plan
from harness.trace import Trace, is_required
from harness.trace.trace import Tokens, Values

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tensor:
    """The first wrong tensor of tokens; `tokens` are those that the oracle has."""

    key: str
    tokens: Tokens
    expected_n: Values
    got_n: Values


@dataclass(frozen=True)
class Evidence:
    """A comparison that diverged, and what it compared."""

    comparison: Comparison
    oracle: Trace
    got: Trace
    # How many tokens each rank computed, padding included, if that is known.
    computed: tuple[int, ...] = ()

    @property
    def of_required(self) -> "Evidence":
        """Leave out what a candidate need not show."""
        keys = tuple(result for result in self.comparison.keys if is_required(result.key))
        got = self.got.only({key for key in self.got if is_required(key)})
        return replace(self, comparison=replace(self.comparison, keys=keys), got=got)

    @property
    def case(self) -> Case:
        return self.comparison.case

    @cached_property
    def wrong(self) -> list[str]:
        """Keys that hold a wrong element, in execution order."""
        return [result.key for result in self.comparison.keys if result.wrong]

    @cached_property
    def streams(self) -> list[Tokens]:
        """Token numbers of each stream, in stream order."""
        layout = plan(self.case)
        return [
            np.concatenate([self.tokens_of(span.row) for span in stream.spans])
            for stream in layout.streams
        ]

    @cached_property
    def replicas(self) -> Tokens:
        """The replica of each stream."""
        return np.array([stream.replica for stream in plan(self.case).streams])

    def tokens_of(self, row: int) -> Tokens:
        return np.arange(self.case.offsets[row], self.case.offsets[row + 1])

    @cached_property
    def stream_n(self) -> Tokens:
        """Which stream each token is in."""
        return self._by_token([np.full(len(s), i) for i, s in enumerate(self.streams)])

    @cached_property
    def place_n(self) -> Tokens:
        """Each token's position in its stream."""
        return self._by_token([np.arange(len(s)) for s in self.streams])

    @cached_property
    def row_n(self) -> Tokens:
        return np.repeat(
            np.arange(len(self.case.rows)), [len(row) for row in self.case.rows]
        ).astype(np.int64)

    @cached_property
    def position_n(self) -> Tokens:
        """Each token's position in its row."""
        offsets_n: Tokens = np.arange(self.case.tokens) - np.array(self.case.offsets)[self.row_n]
        return offsets_n

    @cached_property
    def ids_n(self) -> Tokens:
        return np.concatenate([self.case.ids_of(row) for row in range(len(self.case.rows))])

    @cached_property
    def mask_n(self) -> Mask:
        """Which tokens are targets, row starts excepted: nothing stands before them."""
        bits = np.array([bit == "1" for row in self.case.rows for bit in row.mask])
        return bits & (self.position_n > 0)

    @cached_property
    def owner_n(self) -> Tokens:
        """Which rank computed each token; -1 where none did."""
        owner_n = np.full(self.case.tokens, -1)
        nll = self.got["nll"]
        if nll.tokens is not None and nll.owners is not None:
            owner_n[nll.tokens] = nll.owners
        return owner_n

    @cached_property
    def targets(self) -> Tokens:
        """Tokens that predict a target."""
        tokens = self.oracle["nll"].tokens
        if tokens is None:
            raise ValueError("losses are of tokens")
        return tokens

    @cached_property
    def labels_n(self) -> Tokens:
        """The next token of the stream, of the last the first: before any is masked."""
        labels_n = self.moved(self.ids_n, 1, fill=0)
        for stream in self.streams:
            labels_n[stream[-1]] = self.ids_n[stream[0]]
        return labels_n

    @cached_property
    def losses_n(self) -> Values:
        """What each token lost; NaN where nobody says."""
        nll = self.got["nll"]
        return self.spread(nll.values.astype(np.float64), nll.tokens, np.nan)

    @cached_property
    def local_n(self) -> Tokens:
        """Each token's place among those of its stream that its rank holds."""
        local_n = np.zeros(self.case.tokens, np.int64)
        for piece in self.shards:
            local_n[piece] = np.arange(len(piece))
        return local_n

    @cached_property
    def shards(self) -> list[Tokens]:
        """The tokens of each stream on each rank, in stream order."""
        return [
            stream[self.owner_n[stream] == rank]
            for stream in self.streams
            for rank in np.unique(self.owner_n[stream])
        ]

    @cached_property
    def row_end_n(self) -> Mask:
        """The last token of every row."""
        lengths = np.array([len(row) for row in self.case.rows])
        ends_n: Mask = self.position_n == lengths[self.row_n] - 1
        return ends_n

    @cached_property
    def left_padded_n(self) -> Mask:
        """Tokens of rows that have padding before them in their micro-batch."""
        padded_n = np.zeros(self.case.tokens, bool)
        for stream in plan(self.case).streams:
            rows = [(span.row, span.stop - span.start) for span in stream.spans]
            for row, length in rows:
                longest = max(other for _, other in rows)
                if self.case.rows[row].side == "left" and length < longest:
                    padded_n[self.tokens_of(row)] = True
        return padded_n

    @cached_property
    def before_padding_n(self) -> Mask:
        """The last token of a stream on each rank that computes padding as well."""
        before_n = np.zeros(self.case.tokens, bool)
        for rank, computed in enumerate(self.computed):
            if computed > (self.owner_n == rank).sum():
                for stream in self.streams:
                    before_n[stream[self.owner_n[stream] == rank][-1:]] = True
        return before_n

    @cached_property
    def edge_n(self) -> Mask:
        """Tokens whose successor in the stream is not the next one on their rank."""
        following = self.moved(self.owner_n, 1, fill=-2)
        edge_n: Mask = (following != self.owner_n) & (following != -2)
        return edge_n

    @cached_property
    def ends_n(self) -> dict[str, Mask]:
        """The last and the first tokens that a rank holds of a row which goes on elsewhere."""
        owner, row = self.owner_n, self.row_n
        joints = (owner[1:] != owner[:-1]) & (row[1:] == row[:-1])
        return {"last": np.append(joints, False), "first": np.insert(joints, 0, False)}

    def moved(self, values_n: Tokens, by: int, *, fill: int) -> Tokens:
        """For each token the value `by` places on in its stream."""
        moved_n = np.full_like(values_n, fill)
        for stream in self.streams:
            at = np.arange(len(stream)) + by
            inside = (at >= 0) & (at < len(stream))
            moved_n[stream[inside]] = values_n[stream[at[inside]]]
        return moved_n

    def next_in_shard(self, values_n: Tokens) -> Tokens:
        """For each token the value of the next that its rank holds; the last has the first's."""
        moved_n = values_n.copy()
        for piece in self.shards:
            moved_n[piece] = values_n[np.roll(piece, -1)]
        return moved_n

    def spread(self, values: Values, tokens: Tokens | None, fill: float) -> Values:
        """By token number; `fill` where there is none."""
        spread_n: Values = np.full((self.case.tokens, *values.shape[1:]), fill, values.dtype)
        spread_n[tokens] = values
        return spread_n

    def alike(self, one: Values, other: Values, *, dims: tuple[int, ...] = ()) -> Mask:
        """Which elements agree, for the purpose of a description; all those over `dims`."""
        return np.asarray(alike(one, other, self.case.dtype).all(dims))

    def _by_token(self, parts: list[Tokens]) -> Tokens:
        values_n = np.zeros(self.case.tokens, np.int64)
        for stream, part in zip(self.streams, parts, strict=True):
            values_n[stream] = part
        return values_n
