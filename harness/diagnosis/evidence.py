"""One judged run as evidence: both traces, and where each token stood.

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
class TokenTensor:
    """A wrong tensor with one entry per token; `tokens` are those that the oracle has."""

    key: str
    tokens: Tokens
    expected_n: Values
    got_n: Values


@dataclass(frozen=True)
class Evidence:
    """A comparison, and the two traces that it compared."""

    comparison: Comparison
    oracle: Trace
    got: Trace
    # How many tokens each rank computed, padding included; empty if unknown.
    computed: tuple[int, ...] = ()

    @property
    def of_required(self) -> "Evidence":
        """Return the evidence with the required keys alone."""
        keys = tuple(result for result in self.comparison.measured.keys if is_required(result.key))
        got = self.got.only({key for key in self.got if is_required(key)})
        measured = replace(self.comparison.measured, keys=keys)
        return replace(self, comparison=replace(self.comparison, measured=measured), got=got)

    @property
    def case(self) -> Case:
        return self.comparison.case

    @cached_property
    def wrong_keys(self) -> list[str]:
        """Keys that hold a wrong element, in execution order."""
        return [result.key for result in self.comparison.measured.keys if result.wrong]

    @cached_property
    def streams(self) -> list[Tokens]:
        """The token numbers of each stream, in stream order."""
        layout = plan(self.case)
        return [
            np.concatenate([self.tokens_of(span.row) for span in stream.spans])
            for stream in layout.streams
        ]

    @cached_property
    def stream_replicas(self) -> Tokens:
        """The replica of each stream."""
        return np.array([stream.replica for stream in plan(self.case).streams])

    def tokens_of(self, row: int) -> Tokens:
        return np.arange(self.case.offsets[row], self.case.offsets[row + 1])

    @cached_property
    def stream_n(self) -> Tokens:
        """The stream of each token."""
        return self._from_streams([np.full(len(s), i) for i, s in enumerate(self.streams)])

    @cached_property
    def place_n(self) -> Tokens:
        """The position of each token in its stream."""
        return self._from_streams([np.arange(len(s)) for s in self.streams])

    @cached_property
    def row_n(self) -> Tokens:
        return np.repeat(
            np.arange(len(self.case.rows)), [len(row) for row in self.case.rows]
        ).astype(np.int64)

    @cached_property
    def position_n(self) -> Tokens:
        """The position of each token in its row."""
        offsets_n: Tokens = np.arange(self.case.tokens) - np.array(self.case.offsets)[self.row_n]
        return offsets_n

    @cached_property
    def ids_n(self) -> Tokens:
        return np.concatenate([self.case.ids_of(row) for row in range(len(self.case.rows))])

    @cached_property
    def mask_n(self) -> Mask:
        """Which tokens are targets; the first token of a row never is, as none predicts it."""
        bits = np.array([bit == "1" for row in self.case.rows for bit in row.mask])
        return bits & (self.position_n > 0)

    @cached_property
    def owner_n(self) -> Tokens:
        """The rank that computed each token; -1 if no rank did."""
        owner_n = np.full(self.case.tokens, -1)
        nll = self.got.losses
        if nll.tokens is not None and nll.owners is not None:
            owner_n[nll.tokens] = nll.owners
        return owner_n

    @cached_property
    def targets(self) -> Tokens:
        """The tokens that predict a target."""
        tokens = self.oracle.losses.tokens
        if tokens is None:
            raise ValueError("losses are of tokens")
        return tokens

    @cached_property
    def labels_n(self) -> Tokens:
        """The label of each token before masking: the next id of its stream, cyclically."""
        labels_n = self.moved(self.ids_n, 1, fill=0)
        for stream in self.streams:
            labels_n[stream[-1]] = self.ids_n[stream[0]]
        return labels_n

    @cached_property
    def losses_n(self) -> Values:
        """The loss of each token as the candidate emitted it; NaN where it emitted none."""
        nll = self.got.losses
        return self.scatter(nll.values.astype(np.float64), nll.tokens, np.nan)

    @cached_property
    def local_n(self) -> Tokens:
        """The position of each token in its shard."""
        local_n = np.zeros(self.case.tokens, np.int64)
        for shard in self.shards:
            local_n[shard] = np.arange(len(shard))
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
        """Which tokens are the last of their row."""
        lengths = np.array([len(row) for row in self.case.rows])
        ends_n: Mask = self.position_n == lengths[self.row_n] - 1
        return ends_n

    @cached_property
    def left_padded_n(self) -> Mask:
        """Which tokens are in a row that has padding before it in its micro-batch."""
        padded_n = np.zeros(self.case.tokens, bool)
        for stream in plan(self.case).streams:
            rows = [(span.row, span.stop - span.start) for span in stream.spans]
            longest = max(length for _, length in rows)
            for row, length in rows:
                if self.case.rows[row].side == "left" and length < longest:
                    padded_n[self.tokens_of(row)] = True
        return padded_n

    @cached_property
    def before_padding_n(self) -> Mask:
        """Which tokens are the last of a shard whose rank computes padding as well."""
        before_n = np.zeros(self.case.tokens, bool)
        for rank, computed in enumerate(self.computed):
            if computed > (self.owner_n == rank).sum():
                for stream in self.streams:
                    before_n[stream[self.owner_n[stream] == rank][-1:]] = True
        return before_n

    @cached_property
    def edge_n(self) -> Mask:
        """Which tokens have their successor in the stream on another rank."""
        following = self.moved(self.owner_n, 1, fill=-2)
        edge_n: Mask = (following != self.owner_n) & (following != -2)
        return edge_n

    @cached_property
    def shard_ends(self) -> dict[str, Mask]:
        """Which tokens are the last, or the first, on their rank of a row that is cut there."""
        owner, row = self.owner_n, self.row_n
        joints = (owner[1:] != owner[:-1]) & (row[1:] == row[:-1])
        return {"last": np.append(joints, False), "first": np.insert(joints, 0, False)}

    def moved(self, values_n: Tokens, by: int, *, fill: int) -> Tokens:
        """Return for each token the value `by` places further on in its stream, or `fill`."""
        moved_n = np.full_like(values_n, fill)
        for stream in self.streams:
            at = np.arange(len(stream)) + by
            inside = (at >= 0) & (at < len(stream))
            moved_n[stream[inside]] = values_n[stream[at[inside]]]
        return moved_n

    def next_in_shard(self, values_n: Tokens) -> Tokens:
        """Return for each token the value of the next one in its shard, cyclically."""
        moved_n = values_n.copy()
        for shard in self.shards:
            moved_n[shard] = values_n[np.roll(shard, -1)]
        return moved_n

    def scatter(self, values: Values, tokens: Tokens | None, fill: float) -> Values:
        """Return the values by token number; `fill` where a token has none."""
        scattered_n: Values = np.full((self.case.tokens, *values.shape[1:]), fill, values.dtype)
        scattered_n[tokens] = values
        return scattered_n

    def alike(self, one: Values, other: Values, *, dims: tuple[int, ...] = ()) -> Mask:
        """Return which elements agree well enough for a description; all along `dims` must."""
        return np.asarray(alike(one, other, self.case.dtype).all(dims))

    def _from_streams(self, parts: list[Tokens]) -> Tokens:
        """Return by token number what `parts` hold stream by stream."""
        values_n = np.zeros(self.case.tokens, np.int64)
        for stream, part in zip(self.streams, parts, strict=True):
            values_n[stream] = part
        return values_n
