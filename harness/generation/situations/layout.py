"""Situations of the layout: where the stream is cut between ranks, and its padding."""

from harness.case import Case
from harness.generation.situations.registry import situation
from harness.generation.situations.streams import any_stream, cuts, length
from harness.plan import Plan


@situation("boundary inside a row, supervised on both sides")
def boundary_inside_row(case: Case, layout: Plan) -> bool:
    """An exchange forgotten, positions begun again: losses on both sides tell."""
    return any(
        any(0 < t < cut for t in targets) and any(t >= cut for t in targets)
        for _, cut, targets in cuts(case, layout)
    )


@situation("supervised label on the next rank")
def label_on_next_rank(case: Case, layout: Plan) -> bool:
    """A label lost or wrapped at a cut is felt by the loss only here."""
    return layout.live_boundary_labels(case) > 0


@situation("boundary just before a row's last token")
def boundary_before_last_token(case: Case, layout: Plan) -> bool:
    """A row's last loss term and its label are on two ranks; one more term hides it."""
    return any(
        cut == length(span) - 1 and cut in targets for span, cut, targets in cuts(case, layout)
    )


@situation("boundary at a row's end")
def boundary_at_row_end(case: Case, layout: Plan) -> bool:
    """Where faults at cuts vanish, and where `<` and `<=` part."""
    return any(cut == length(span) for span, cut, _ in cuts(case, layout))


@situation("boundary at a row's start")
def boundary_at_row_start(case: Case, layout: Plan) -> bool:
    """A rank begins with position zero: a local count of positions is right by accident."""
    return any(cut == 0 for _, cut, _ in cuts(case, layout))


@situation("boundary in a row's unsupervised prefix")
def boundary_in_prompt(case: Case, layout: Plan) -> bool:
    """No loss term at the cut, and yet attention has to cross it."""
    return any(targets and 0 < cut < min(targets) for _, cut, targets in cuts(case, layout))


@situation("row over three or more shards")
def row_over_three_shards(_case: Case, layout: Plan) -> bool:
    """A rank in the middle sees neither end of its row; an exchange between neighbours fails."""
    return any_stream(
        layout,
        lambda s: any(s.owner(span.stop - 1) - s.owner(span.start) >= 2 for span in s.spans),
    )


@situation("row exactly one shard long")
def row_one_shard_long(case: Case, layout: Plan) -> bool:
    """A shard taken for a row, and its length for the row's, go unnoticed."""
    return case.sp > 1 and any_stream(
        layout,
        lambda s: any(length(span) == s.local_length for span in s.spans),
    )


@situation("one-token row")
def one_token_row(case: Case, _layout: Plan) -> bool:
    """No loss term, and a document boundary right after another one."""
    return any(len(row) == 1 for row in case.rows)


@situation("single row in a stream")
def single_row(_case: Case, layout: Plan) -> bool:
    """Nothing is packed: code often takes another branch."""
    return any_stream(layout, lambda s: len(s.spans) == 1)


@situation("T divisible by sp")
def aligned(case: Case, layout: Plan) -> bool:
    """No padding: `x[:-pad]` with a pad of zero is empty."""
    return case.sp > 1 and any_stream(layout, lambda s: s.pad == 0)


@situation("pad of one")
def pad_of_one(_case: Case, layout: Plan) -> bool:
    """All the padding that sp 2 ever sees."""
    return any_stream(layout, lambda s: s.pad == 1)


@situation("pad of two or more")
def pad_of_two(_case: Case, layout: Plan) -> bool:
    """A tail long enough to have positions, and to be torn into documents of its own."""
    return any_stream(layout, lambda s: s.pad >= 2)


@situation("pad of sp - 1, sp > 2")
def largest_pad(case: Case, layout: Plan) -> bool:
    """One real token more than divides: what is taken for tokens by mistake is the most."""
    return case.sp > 2 and any_stream(layout, lambda s: s.pad == s.sp - 1)


@situation("T < sp")
def shorter_than_sp(_case: Case, layout: Plan) -> bool:
    """A shard length computed by flooring is zero."""
    return any_stream(layout, lambda s: s.length < s.sp)


@situation("rank that holds only padding")
def rank_of_padding(_case: Case, layout: Plan) -> bool:
    """Its loss is a mean over nothing, and yet it has to take part in every collective."""
    return any_stream(layout, lambda s: s.local_length * (s.sp - 1) >= s.length)
