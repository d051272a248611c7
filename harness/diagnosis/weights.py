"""Name wrong weights of tokens in the loss: which tokens count, and what the sum is divided by.

Legend: n any token of the case by its number.
"""

from collections.abc import Iterator

import numpy as np

from harness.compare import Look
from harness.diagnosis.evidence import Evidence, Mask
from harness.trace.trace import Tokens, Values

# A weight below this share of the largest one is zero.
NEGLIGIBLE = 1e-9


def looks_of_weights(evidence: Evidence, expected_n: Values, got_n: Values) -> Iterator[Look]:
    """Yield every name that fits the weights `got_n` on this case, the best first."""
    if not np.isfinite(got_n).all():
        yield Look("non-finite", "a token's weight in the loss is not a number")
        return
    counts_n, counted_n = _is_counted(expected_n), _is_counted(got_n)
    if np.array_equal(counts_n, counted_n):
        looks = _looks_of_denominators(evidence, expected_n, got_n, counts_n)
    else:
        looks = _looks_of_masks(evidence, counts_n, counted_n)
    is_loss_wrong = "loss" in evidence.wrong_keys
    for look in looks:
        yield look if is_loss_wrong else _in_backward(look, counted_n)


def _in_backward(look: Look, counted_n: Mask) -> Look:
    """Return the name that a look has if the loss is right, so that only backward is wrong."""
    why = f"the loss is right, but in backward: {look.why}"
    if not counted_n.any():
        return Look("gradient-missing", "the loss is right, and reaches no gradient")
    if look.name == "denominator-wrong-count":
        return Look("gradient-scaled", why)
    if look.name.startswith(("gradient-", "denominator-")):
        return look
    return Look("gradient-partial", why)


def _is_counted(weight_n: Values) -> Mask:
    size_n = np.abs(weight_n)
    counted_n: Mask = size_n > NEGLIGIBLE * size_n.max(initial=0.0)
    return counted_n


def _looks_of_masks(evidence: Evidence, counts_n: Mask, counted_n: Mask) -> Iterator[Look]:
    """Yield names for other tokens that count; `counts_n` should, `counted_n` do."""
    lost_n, extra_n = counts_n & ~counted_n, counted_n & ~counts_n
    lost, extra = int(lost_n.sum()), int(extra_n.sum())
    summary = f"{lost} tokens should count and do not, {extra} do and should not"
    if not counted_n.any():
        yield Look("mask-replaced", "no token counts at all")
    ends_n = evidence.row_end_n
    if not extra_n.any() and (evidence.edge_n | ~lost_n).all():
        how = "the last tokens of shards do not count"
        yield Look("label-lost-at-edge", f"{summary}: they are the last of their shards", how=how)
    if not lost_n.any() and (ends_n | ~extra_n).all():
        last_n = evidence.moved(evidence.ids_n, 1, fill=-1) < 0
        if (last_n | ~extra_n).all():
            how = "the stream's last counts, which nothing follows"
            yield Look("label-wrapped", f"{summary}: {how}", how=how)
        how = "the last tokens of rows count"
        yield Look("label-crosses-rows", f"{summary}: {how}", how=how)
    inner_n = ~ends_n & (evidence.position_n > 0)
    for by, shift in ((0, "not shifted"), (2, "shifted twice"), (-1, "shifted the other way")):
        moved_n = evidence.moved(evidence.mask_n.astype(np.int64), by, fill=0).astype(bool)
        if np.array_equal(moved_n[inner_n], counted_n[inner_n]):
            how = f"the mask is {shift}"
            yield Look("mask-shifted", f"{summary}: {how}", how=how)
    in_shard_n = evidence.next_in_shard(evidence.mask_n.astype(np.int64)).astype(bool)
    if np.array_equal(in_shard_n & inner_n, counted_n & inner_n):
        how = "the mask is shifted inside each shard"
        yield Look("mask-shifted", f"{summary}: {how}", how=how)
    yield Look("mask-replaced", summary)
    # On one case this also fits many other bugs, so it comes last.
    if _is_shifted_by_row(evidence, counted_n):
        how = "each row's mask is taken from further on or back"
        yield Look("mask-shifted", f"{summary}: {how}", how=how, shown=bool(counted_n.any()))


def _is_shifted_by_row(evidence: Evidence, counted_n: Mask) -> bool:
    """Return whether each row has the stream's mask of another place, as padding may move it."""
    farthest = evidence.case.sp * len(evidence.case.rows)
    predicts_n = evidence.moved(evidence.mask_n.astype(np.int64), 1, fill=0)
    moved = [evidence.moved(predicts_n, by, fill=0) for by in range(-farthest, farthest + 1)]
    rows = [evidence.tokens_of(row) for row in range(len(evidence.case.rows))]
    return all(any(np.array_equal(m[row], counted_n[row]) for m in moved) for row in rows)


def _looks_of_denominators(
    evidence: Evidence, expected_n: Values, got_n: Values, counts_n: Mask
) -> Iterator[Look]:
    """Yield names for wrong weights of the right tokens."""
    tokens = np.flatnonzero(counts_n)
    ratio_n = np.zeros(evidence.case.tokens)
    ratio_n[tokens] = got_n[tokens] / expected_n[tokens]
    if _is_constant(evidence, ratio_n[tokens]):
        yield from looks_of_factor(evidence, float(np.median(ratio_n[tokens])))
    for by, direction in ((1, "on"), (-1, "back")):
        shifted_n = np.zeros_like(expected_n)
        for stream in evidence.streams:
            shifted_n[stream] = np.roll(expected_n[stream], -by)
        if evidence.alike(shifted_n, got_n).all():
            yield Look(
                "mask-shifted", f"every token has the weight of the one {direction} in the stream"
            )
    reduced_again = _name_reduced_again(evidence, ratio_n, counts_n)
    if reduced_again:
        yield reduced_again
        return
    for name, where, groups in groupings(evidence):
        parts = [group[counts_n[group]] for group in groups]
        parts = [part for part in parts if len(part)]
        if all(_is_constant(evidence, ratio_n[part]) for part in parts):
            factors = ", ".join(f"{ratio_n[part[0]]:.4g}" for part in parts[:4])
            is_shown = not _is_constant(evidence, ratio_n[tokens])
            how = f"weights are off by one factor {where}"
            yield Look(name, f"{how}: {factors}", how=how, shown=is_shown)
    yield Look("mask-replaced", "the right tokens count, with weights that follow no pattern")


def _name_reduced_again(evidence: Evidence, ratio_n: Values, counts_n: Mask) -> Look | None:
    """Name gradients of earlier micro-batches that later ones sum over ranks once more."""
    micro = evidence.case.micro_batches
    if "loss" in evidence.wrong_keys or micro == 1:
        return None
    parts = [np.concatenate(evidence.streams[part::micro]) for part in range(micro)]
    factors = []
    for part, tokens in enumerate(tokens[counts_n[tokens]] for tokens in parts):
        times = float(evidence.case.ranks ** (micro - 1 - part))
        factors.append(f"{times:g}")
        if not evidence.alike(np.full(len(tokens), times), ratio_n[tokens]).all():
            return None
    counts = f"micro-batches count {', '.join(factors)} times in backward"
    return Look("gradient-partial", f"the loss is right, and {counts}")


def groupings(evidence: Evidence) -> Iterator[tuple[str, str, list[Tokens]]]:
    """Yield ways to group tokens whose mean is taken: a name, where, and the groups."""
    streams, micro = evidence.streams, evidence.case.micro_batches
    numbers = range(len(streams))
    yield (
        "denominator-per-part",
        "in each replica",
        [
            np.concatenate([streams[i] for i in numbers if evidence.stream_replicas[i] == replica])
            for replica in range(evidence.case.dp)
        ],
    )
    yield (
        "denominator-per-part",
        "in each micro-batch",
        [
            np.concatenate([streams[i] for i in numbers if i % micro == part])
            for part in range(micro)
        ],
    )
    yield "denominator-per-part", "in each replica's micro-batch", list(streams)
    owners = np.unique(evidence.owner_n)
    by_rank = [np.flatnonzero(evidence.owner_n == rank) for rank in owners]
    yield "denominator-per-rank", "on each rank", by_rank
    yield "denominator-per-rank", "on each rank in each micro-batch", evidence.shards
    rows = [evidence.tokens_of(row) for row in range(len(evidence.case.rows))]
    yield "denominator-per-part", "in each row", rows
    yield (
        "denominator-per-rank",
        "on each rank in each row",
        [row[evidence.owner_n[row] == rank] for row in rows for rank in owners],
    )


def _is_constant(evidence: Evidence, ratio: Values) -> bool:
    return bool(evidence.alike(np.full_like(ratio, ratio[0]), ratio).all())


def name_factor(evidence: Evidence, factor: float) -> Look:
    """Name one factor over everything: a number of ranks, or another count."""
    return next(look for look in looks_of_factor(evidence, factor) if look.shown)


def looks_of_factor(evidence: Evidence, factor: float) -> Iterator[Look]:
    """Yield every name that fits one factor over everything, the best first."""
    case = evidence.case
    summary = f"off by a factor of {factor:.6g}"

    def is_about(value: float) -> bool:
        return bool(evidence.alike(np.array([value]), np.array([factor]))[0])

    for size, name in ((case.sp, "sp"), (case.dp, "dp")):
        if size > 1 and is_about(size):
            how = f"every gradient is {name} times too large"
            yield Look(f"gradient-times-{name}", f"{summary} = {name}", how=how)
        if size > 1 and is_about(1 / size):
            how = f"every gradient is {name} times too small"
            yield Look(f"gradient-over-{name}", f"{summary} = 1/{name}", how=how)
    ranks = case.ranks
    if factor < 0 or (ranks > 1 and (is_about(ranks) or is_about(1 / ranks))):
        yield Look("gradient-scaled", summary)
    total, counted = int(evidence.mask_n.sum()), 0
    for empty in range(1, ranks * case.micro_batches * len(case.rows) + 1):
        if total and case.loss == "token-mean" and is_about(total / (total + empty)):
            counted = total + empty
            if empty in _numbers_of_empty_parts(evidence):
                why = f"{summary}: {empty} parts without a target count as one"
                how = "parts without a target count as one"
                yield Look("denominator-clamped", why, how=how)
    why = f"{summary}: {counted} counted, not {total}" if counted else summary
    yield Look("denominator-wrong-count", why)
    # On one case this also fits many other bugs, so it comes last.
    if total > 1 and is_about(min(case.sp, total)):
        how = "targets are divided by sp, and clamped to one then"
        yield Look("gradient-times-sp", f"{summary}: {how}", how=how, shown=total < case.sp)


def _numbers_of_empty_parts(evidence: Evidence) -> set[int]:
    """Return how many ranks, shards, micro-batches, replicas or rows have no target at all."""
    predicts_n = evidence.moved(evidence.mask_n.astype(np.int64), 1, fill=0)
    numbers = set()
    case = evidence.case
    owners = len(np.unique(evidence.owner_n))
    for _, _, groups in groupings(evidence):
        empty = sum(len(group) > 0 and not predicts_n[group].any() for group in groups)
        # Ranks that hold padding only own no token and appear in no group.
        numbers |= {empty, empty + case.ranks - owners}
    return numbers - {0}
