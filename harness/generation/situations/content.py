"""Situations of what rows hold: targets, padding, ids."""

from harness.case import Case
from harness.generation.situations.registry import situation
from harness.generation.situations.streams import any_stream, length
from harness.plan import Plan, Stream


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
    """A mask taken for one run of tokens, or compressed and shifted, is wrong only here."""
    return any("0" in row.mask.strip("0") for row in case.rows)


@situation("first token of a row masked in")
def first_token_masked_in(case: Case, _layout: Plan) -> bool:
    """It has no predecessor in its row: counting it takes a label across rows."""
    return any(row.mask[0] == "1" for row in case.rows)


@situation("last row of full width")
def last_row_of_full_width(_case: Case, layout: Plan) -> bool:
    """Dropping the last column cuts a real token off, not padding."""
    return any_stream(
        layout, lambda s: len(s.spans) > 1 and length(s.spans[-1]) == max(map(length, s.spans))
    )


@situation("left-padded row")
def left_padded(case: Case, layout: Plan) -> bool:
    """Columns are not positions."""

    def has_left_padding(stream: Stream) -> bool:
        longest = max(map(length, stream.spans))
        return any(
            case.rows[span.row].side == "left" and length(span) < longest for span in stream.spans
        )

    return any_stream(layout, has_left_padding)


@situation("real token equal to the pad id")
def real_pad_id(case: Case, _layout: Plan) -> bool:
    """A mask derived from ids drops it."""
    return any(case.pad_id in case.ids_of(row) for row in range(len(case.rows)))


@situation("two equal rows in a stream")
def two_equal_rows(case: Case, layout: Plan) -> bool:
    """Whatever finds a row by its content finds the wrong one."""

    def has_equal_rows(stream: Stream) -> bool:
        rows = [span.row for span in stream.spans if length(span) > 1]
        return len({(case.rows[row].mask, case.ids_of(row)) for row in rows}) < len(rows)

    return any_stream(layout, has_equal_rows)
