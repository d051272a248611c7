"""The data of a picture of a divergence: how far off each token is. No verdict depends on it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.case import Case
from harness.compare.budget import ZERO
from harness.compare.elementwise import Judged, shares_of_budget
from harness.trace import GRADIENT, Assembly, Entry, Trace
from harness.trace.trace import Tokens, Values

# A sign is one character for each token of a tensor. WITHIN: its errors are within budget.
# "1" to FARTHEST: its largest error is up to 100, 100^2, ... budgets. NO_NUMBER: it is not finite.
# ABSENT: the candidate has no row for it.
WITHIN, FARTHEST, NO_NUMBER, ABSENT = "0", 8, 9, "-"
# The most signs and pieces that a picture has. A case with more than MOST_NUMBERS tokens has no
# numbers in its picture.
MOST_SIGNS, MOST_NUMBERS, MOST_PIECES = 1 << 17, 1 << 11, 1 << 12
DIGITS = 6
# The keys that a picture shows as numbers. The expected ones are shown even if the candidate did
# not emit the key.
NUMBER_KEYS = ("ids", "positions", "labels", "weight", "nll")

Number = float | int | None


@dataclass(frozen=True, slots=True)
class TokenMap:
    """Where one tensor is wrong: a sign for each token of the case."""

    key: str
    signs: str
    # The signs of each head, if the tensor has heads.
    heads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Numbers:
    """The expected and the candidate's number of each token, for a key with one per token."""

    key: str
    expected: tuple[Number, ...]
    # Empty if the candidate did not emit the key.
    got: tuple[Number, ...] = ()
    # Whether `got` was computed from the candidate's gradients instead.
    inferred: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The data of the picture of one divergence."""

    # Runs of tokens with the same owner: the first token, and the rank, or -1 for no rank.
    owners: tuple[tuple[int, int], ...]
    # By rank, the number of tokens that it computed, padding included.
    computed: tuple[int, ...]
    # A map of each tensor with wrong elements, in execution order.
    maps: tuple[TokenMap, ...]
    numbers: tuple[Numbers, ...]
    # For each gradient, the factor that brings the expected one closest to it; None if the
    # expected one is zero.
    ratios: dict[str, float | None]
    # For each gradient, how often each rank's share counts, if a diagnosis found that.
    shares: dict[str, dict[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JudgedTensor:
    """One tensor with its expected values and the result of judging it."""

    key: str
    expected: Values
    got: Values
    judged: Judged
    # The token of each row; None if rows do not belong to tokens.
    tokens: Tokens | None


def draw_picture(
    case: Case, oracle: Trace, assembly: Assembly, tensors: list[JudgedTensor]
) -> Picture:
    """Return the picture of a divergence, without the parts that do not fit."""
    gradients = [tensor for tensor in tensors if tensor.key.startswith(GRADIENT)]
    largest = max((_largest(tensor.expected) for tensor in gradients), default=0.0)
    return Picture(
        owners=_owned_runs(case, assembly.trace.losses),
        computed=assembly.local_rows,
        maps=tuple(_maps(case, tensors)),
        numbers=tuple(_numbers(case, oracle, {tensor.key: tensor for tensor in tensors})),
        ratios={tensor.key: _ratio(tensor, ZERO * largest) for tensor in gradients},
    )


def _owned_runs(case: Case, nll: Entry) -> tuple[tuple[int, int], ...]:
    owner_n = np.full(case.tokens, -1)
    if nll.tokens is not None and nll.owners is not None:
        owner_n[nll.tokens] = nll.owners
    starts = np.flatnonzero(np.diff(owner_n, prepend=-2))
    if len(starts) > MOST_PIECES:
        return ()
    return tuple(zip(starts.tolist(), owner_n[starts].tolist(), strict=True))


def _maps(case: Case, tensors: list[JudgedTensor]) -> Iterator[TokenMap]:
    room = MOST_SIGNS
    for tensor in tensors:
        if tensor.tokens is None or not tensor.judged.wrong.size:
            continue
        shares = shares_of_budget(tensor.judged)
        heads = shares.shape[1] if shares.ndim == 3 else 0
        room -= case.tokens * (1 + heads)
        if room < 0:
            return
        by_head = tuple(_signs(case, tensor.tokens, shares[:, head]) for head in range(heads))
        yield TokenMap(tensor.key, _signs(case, tensor.tokens, shares), by_head)


def _signs(case: Case, tokens: Tokens, shares: Values) -> str:
    most_t = shares.reshape(len(tokens), -1).max(1, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        hundreds_t = 1 + np.floor(np.log10(most_t) / 2)
    level_t = np.where(most_t <= 1, 0, np.clip(hundreds_t, 1, FARTHEST))
    sign_n = np.full(case.tokens, ABSENT)
    sign_n[tokens] = np.where(np.isfinite(level_t), level_t, NO_NUMBER).astype(int).astype(str)
    return "".join(sign_n.tolist())


def _numbers(case: Case, oracle: Trace, tensors: Mapping[str, JudgedTensor]) -> Iterator[Numbers]:
    if case.tokens > MOST_NUMBERS:
        return
    for key in NUMBER_KEYS:
        if key not in oracle or oracle[key].tokens is None:
            continue
        emitted = tensors.get(key)
        expected = _by_token(case, oracle[key].tokens, oracle[key].values)
        got = () if emitted is None else _by_token(case, emitted.tokens, emitted.got)
        yield Numbers(key, expected, got)


def _by_token(case: Case, tokens: Tokens | None, values: Values) -> tuple[Number, ...]:
    """Return a short number for each token of the case; None if it has none, or no finite one."""
    number_n: list[Number] = [None] * case.tokens
    if tokens is not None and values.ndim == 1:
        for token, value in zip(tokens.tolist(), values.tolist(), strict=True):
            # JSON has neither NaN nor infinity.
            is_whole = isinstance(value, int)
            short = value if is_whole else float(f"{value:.{DIGITS}g}")
            number_n[token] = short if abs(short) < np.inf else None
    return tuple(number_n)


def _largest(values: Values) -> float:
    return float(np.abs(values).max(initial=0.0))


def _ratio(tensor: JudgedTensor, zero: float) -> float | None:
    if _largest(tensor.expected) <= zero:
        return None
    expected, got = (x.astype(np.float64).ravel() for x in (tensor.expected, tensor.got))
    with np.errstate(invalid="ignore"):
        ratio = float(expected @ got) / float(expected @ expected)
    return float(f"{ratio:.{DIGITS}g}") if abs(ratio) < np.inf else 0.0
