"""The corners where sequence parallelism breaks, as named predicates on a case.

A correct path and a wrong one differ only on some batches. Counting how often a run met each
corner tells whether it could have seen anything. Every predicate says which mistakes hide
wherever it does not hold.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from harness.case import Case
from harness.plan import Plan, Span, Stream, plan

Predicate = Callable[[Case, Plan], bool]
SITUATIONS: dict[str, Predicate] = {}


def situation(name: str) -> Callable[[Predicate], Predicate]:
    """Register a predicate under a name that reads well in a table."""

    def register(predicate: Predicate) -> Predicate:
        SITUATIONS[name] = predicate
        return predicate

    return register


def situations_of(case: Case) -> list[str]:
    """Every corner that a case is in."""
    layout = plan(case)
    return [name for name, predicate in SITUATIONS.items() if predicate(case, layout)]


def _cuts(case: Case, layout: Plan) -> Iterator[tuple[Span, int, frozenset[int]]]:
    """Rows with each position of theirs at which a rank begins, and their supervised positions."""
    for stream in layout.streams:
        for span in stream.spans:
            cuts = [b - span.start for b in stream.boundaries if span.start <= b <= span.stop]
            if cuts:
                targets = frozenset(case.rows[span.row].supervised())
                yield from ((span, cut, targets) for cut in cuts)


def _any_stream(layout: Plan, predicate: Callable[[Stream], bool]) -> bool:
    return any(predicate(stream) for stream in layout.streams)


def _terms(case: Case, stream: Stream) -> int:
    """How many loss terms a stream has."""
    return sum(len(case.rows[span.row].supervised()) for span in stream.spans)


@situation("boundary inside a row, supervised on both sides")
def boundary_inside_row(case: Case, layout: Plan) -> bool:
    """A label lost or wrapped at a cut, an exchange forgotten: the loss feels them only here."""
    return any(
        cut in targets and any(0 < t < cut for t in targets)
        for _, cut, targets in _cuts(case, layout)
    )


@situation("boundary just before a row's last token")
def boundary_before_last_token(case: Case, layout: Plan) -> bool:
    """Of a row's last loss term and its label each is on another rank; one more hides it."""
    return any(
        cut == span.stop - span.start - 1 and cut in targets
        for span, cut, targets in _cuts(case, layout)
    )


@situation("boundary at a row's end")
def boundary_at_row_end(case: Case, layout: Plan) -> bool:
    """Where faults at cuts vanish, and where `<` and `<=` part."""
    return any(cut == span.stop - span.start for span, cut, _ in _cuts(case, layout))


@situation("boundary at a row's start")
def boundary_at_row_start(case: Case, layout: Plan) -> bool:
    """A rank begins with position zero: a local count of positions is right by accident."""
    return any(cut == 0 for _, cut, _ in _cuts(case, layout))


@situation("boundary in a row's unsupervised prefix")
def boundary_in_prompt(case: Case, layout: Plan) -> bool:
    """No loss term at the cut, and yet attention has to cross it."""
    return any(targets and 0 < cut < min(targets) for _, cut, targets in _cuts(case, layout))


@situation("row over three or more shards")
def row_over_three_shards(_case: Case, layout: Plan) -> bool:
    """A rank in the middle sees neither end of its row; an exchange between neighbours fails."""
    return _any_stream(
        layout,
        lambda s: any(s.owner(span.stop - 1) - s.owner(span.start) >= 2 for span in s.spans),
    )


@situation("row exactly one shard long")
def row_one_shard_long(case: Case, layout: Plan) -> bool:
    """A shard taken for a row, and its length for the row's, go unnoticed."""
    return case.sp > 1 and _any_stream(
        layout,
        lambda s: any(span.stop - span.start == s.local_length for span in s.spans),
    )


@situation("one-token row")
def one_token_row(case: Case, _layout: Plan) -> bool:
    """No loss term, and a document boundary right after another one."""
    return any(len(row) == 1 for row in case.rows)


@situation("single row in a stream")
def single_row(_case: Case, layout: Plan) -> bool:
    """Nothing is packed: code often takes another branch."""
    return _any_stream(layout, lambda s: len(s.spans) == 1)


@situation("T divisible by sp")
def aligned(case: Case, layout: Plan) -> bool:
    """No padding: `x[:-pad]` with a pad of zero is empty."""
    return case.sp > 1 and _any_stream(layout, lambda s: s.pad == 0)


@situation("pad of one")
def pad_of_one(_case: Case, layout: Plan) -> bool:
    """All the padding that sp 2 ever sees."""
    return _any_stream(layout, lambda s: s.pad == 1)


@situation("pad of two or more")
def pad_of_two(_case: Case, layout: Plan) -> bool:
    """A tail long enough to have positions, and to be torn into documents of its own."""
    return _any_stream(layout, lambda s: s.pad >= 2)


@situation("pad of sp - 1, sp > 2")
def largest_pad(case: Case, layout: Plan) -> bool:
    """One real token more than divides: rounding the wrong way loses the most."""
    return case.sp > 2 and _any_stream(layout, lambda s: s.pad == s.sp - 1)


@situation("T < sp")
def shorter_than_sp(_case: Case, layout: Plan) -> bool:
    """A shard length computed by flooring is zero."""
    return _any_stream(layout, lambda s: s.length < s.sp)


@situation("rank that holds only padding")
def rank_of_padding(_case: Case, layout: Plan) -> bool:
    """Its loss is a mean over nothing, and yet it has to take part in every collective."""
    return _any_stream(layout, lambda s: s.local_length * (s.sp - 1) >= s.length)


@situation("rank with no supervised token")
def rank_without_supervision(case: Case, layout: Plan) -> bool:
    """A mean over its own tokens is NaN, or weighs as much as a full rank's."""
    return case.sp > 1 and any(
        len({stream.owner(t) for t in layout.supervised(case, stream)}) < case.sp
        for stream in layout.streams
    )


@situation("exactly one supervised token")
def one_supervised_token(case: Case, _layout: Plan) -> bool:
    """The loss is one element: an average hides nothing."""
    return sum(len(row.supervised()) for row in case.rows) == 1


@situation("no supervised token at all")
def nothing_supervised(case: Case, _layout: Plan) -> bool:
    """Zero over zero."""
    return not any(row.supervised() for row in case.rows)


@situation("mask with holes")
def mask_with_holes(case: Case, _layout: Plan) -> bool:
    """A mask taken for a suffix, or compressed and shifted, is wrong only here."""
    return any("0" in row.mask.strip("0") for row in case.rows)


@situation("first token of a row masked in")
def first_token_masked_in(case: Case, _layout: Plan) -> bool:
    """It has no predecessor in its row: counting it takes a label across rows."""
    return any(row.mask[0] == "1" for row in case.rows)


@situation("last row of full width")
def last_row_of_full_width(case: Case, _layout: Plan) -> bool:
    """Dropping the last column cuts a real token off, not padding."""
    return len(case.rows) > 1 and len(case.rows[-1]) == max(len(row) for row in case.rows)


@situation("left-padded row")
def left_padded(case: Case, _layout: Plan) -> bool:
    """Columns are not positions."""
    longest = max(len(row) for row in case.rows)
    return any(row.side == "left" and len(row) < longest for row in case.rows)


@situation("real token equal to the pad id")
def real_pad_id(case: Case, _layout: Plan) -> bool:
    """A mask derived from ids drops it."""
    return any(case.pad_id in case.ids_of(row) for row in range(len(case.rows)))


@situation("two equal rows")
def two_equal_rows(case: Case, _layout: Plan) -> bool:
    """Whatever finds a row by its content finds the wrong one."""
    seen = Counter((row.mask, case.ids_of(r)) for r, row in enumerate(case.rows) if len(row) > 1)
    return max(seen.values(), default=0) > 1


@situation("kv heads < sp")
def fewer_kv_heads_than_ranks(case: Case, _layout: Plan) -> bool:
    """Heads must be repeated, each in its place, and their gradients summed."""
    return case.kv_heads < case.sp


@situation("kv heads = 1, several ranks")
def one_kv_head(case: Case, _layout: Plan) -> bool:
    """Tiled and interleaved repeats are the same: the easy case must not be the only one."""
    return case.kv_heads == 1 and case.sp > 1


@situation("several kv heads on a rank, shared by queries")
def grouped_heads_on_a_rank(case: Case, _layout: Plan) -> bool:
    """Here the order of heads matters, within a rank and between queries and keys."""
    return case.sp > 1 and case.kv_heads >= 2 * case.sp and case.heads > case.kv_heads


@situation("one head per rank")
def one_head_per_rank(case: Case, _layout: Plan) -> bool:
    """No order of heads within a rank can be wrong."""
    return case.sp > 1 and case.heads == case.sp


@situation("local length equal to the number of heads")
def local_length_is_heads(case: Case, layout: Plan) -> bool:
    """Dims swapped by mistake have the right shape."""
    return case.sp > 1 and _any_stream(layout, lambda s: s.local_length == case.heads)


@situation("dp >= 2 with dp != sp")
def uneven_mesh(case: Case, _layout: Plan) -> bool:
    """Where the two factors are equal, taking one for the other cancels out."""
    return case.dp >= 2 and case.sp >= 2 and case.dp != case.sp


@situation("very unequal counts over dp")
def unequal_replicas(case: Case, layout: Plan) -> bool:
    """A mean of means is not the mean: one replica has over four times another's targets."""
    counts = [0] * case.dp
    for stream in layout.streams:
        counts[stream.replica] += _terms(case, stream)
    return 4 * min(counts) < max(counts)


@situation("micro-batches with unequal counts")
def unequal_micro_batches(case: Case, layout: Plan) -> bool:
    """Averaging over micro-batches is not averaging over tokens."""
    return case.micro_batches > 1 and len({_terms(case, s) for s in layout.streams}) > 1


@situation("one micro-batch empty of targets, another not")
def empty_micro_batch(case: Case, layout: Plan) -> bool:
    """A micro-batch that counts for nothing, in a sum and in a mean."""
    counts = {_terms(case, stream) for stream in layout.streams}
    return case.micro_batches > 1 and 0 in counts and len(counts) > 1


@situation("window shorter than a row that is cut")
def window_over_a_cut(case: Case, layout: Plan) -> bool:
    """A window measured in local positions, or gated on the local length, is wrong."""
    window = case.window
    return window is not None and any(
        0 < cut < span.stop - span.start and window < span.stop - span.start
        for span, cut, _ in _cuts(case, layout)
    )


@situation("several layers, cut row")
def several_layers(case: Case, layout: Plan) -> bool:
    """What one layer leaves in the wrong place, the next one reads."""
    return case.layers > 1 and any(
        0 < cut < span.stop - span.start for span, cut, _ in _cuts(case, layout)
    )


@situation("several steps")
def several_steps(case: Case, _layout: Plan) -> bool:
    """What should have been forgotten after the first step is still there in the second."""
    return case.steps > 1
