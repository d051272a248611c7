"""Situations of sizes: heads, mesh, micro-batches, window, layers, steps."""

from harness.case import Case
from harness.generation.situations.registry import situation
from harness.generation.situations.streams import any_stream, cuts, length, terms, terms_by_replica
from harness.plan import Plan


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
    return case.sp > 1 and any_stream(layout, lambda s: s.local_length == case.heads)


@situation("dp and sp above 1, and different")
def uneven_mesh(case: Case, _layout: Plan) -> bool:
    """Where the two factors are equal, taking one for the other cancels out."""
    return case.dp >= 2 and case.sp >= 2 and case.dp != case.sp


@situation("very unequal counts over dp")
def unequal_replicas(case: Case, layout: Plan) -> bool:
    """A mean of means is not the mean: one replica has over four times another's targets."""
    counts = [0] * case.dp
    for stream in layout.streams:
        counts[stream.replica] += terms(case, stream)
    return 4 * min(counts) < max(counts)


@situation("micro-batches with unequal counts")
def unequal_micro_batches(case: Case, layout: Plan) -> bool:
    """Averaging over micro-batches is not averaging over tokens."""
    return any(len(counts) > 1 for counts in terms_by_replica(case, layout))


@situation("one micro-batch empty of targets, another not")
def empty_micro_batch(case: Case, layout: Plan) -> bool:
    """A micro-batch that counts for nothing, in a sum and in a mean."""
    return any(0 in counts and len(counts) > 1 for counts in terms_by_replica(case, layout))


@situation("window shorter than a row that is cut")
def window_over_a_cut(case: Case, layout: Plan) -> bool:
    """A window measured in local positions, or gated on the local length, is wrong."""
    window = case.window
    return window is not None and any(
        0 < cut < length(span) and window < length(span) for span, cut, _ in cuts(case, layout)
    )


@situation("several layers, cut row")
def several_layers(case: Case, layout: Plan) -> bool:
    """What one layer leaves in the wrong place, the next one reads."""
    return case.layers > 1 and any(0 < cut < length(span) for span, cut, _ in cuts(case, layout))


@situation("several steps")
def several_steps(case: Case, _layout: Plan) -> bool:
    """A weight or gradient of the first step that should be forgotten is there in the second."""
    return case.steps > 1
