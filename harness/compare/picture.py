"""A divergence as a reader draws it: how far off each token is. Nothing is ever judged from it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.case import Case
from harness.compare.budget import ZERO
from harness.compare.elementwise import Judged, shares_of_budget
from harness.trace import GRADIENT, Assembly, Entry, Trace
from harness.trace.trace import Tokens, Values

# One sign for each token of a tensor: its largest error in powers of a hundred budgets.
WITHIN, FARTHEST, NO_NUMBER, ABSENT = "0", 8, 9, "-"
# How many signs and owned pieces a picture has at most, and of how many tokens it has numbers.
MOST_SIGNS, MOST_NUMBERS, MOST_PIECES = 1 << 17, 1 << 11, 1 << 12
DIGITS = 6
# What a reader wants to know of a token, also of a candidate that does not show it.
WANTED = ("ids", "positions", "labels", "weight", "nll")

Number = float | int | None


@dataclass(frozen=True, slots=True)
class TokenMap:
    """Where one tensor is wrong: a sign for each token of the case."""

    key: str
    signs: str
    # Signs of each head, if there are heads.
    heads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Numbers:
    """What was expected of each token, and what came; of one number a token."""

    key: str
    expected: tuple[Number, ...]
    # Empty where the candidate does not show it.
    got: tuple[Number, ...] = ()
    # It does not, and gradients tell.
    inferred: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that is drawn of one divergence."""

    # Pieces of tokens in a row of one rank: the first of them, and the rank, or -1 if none has it.
    owners: tuple[tuple[int, int], ...]
    # By rank, how many tokens it computed, padding included.
    computed: tuple[int, ...]
    # One for each tensor that is wrong somewhere, in execution order.
    maps: tuple[TokenMap, ...]
    numbers: tuple[Numbers, ...]
    # For each gradient the factor that brings the expected one nearest to it; none if that is
    # zero.
    ratios: dict[str, float | None]
    # How often each rank's share of a gradient counts, where a diagnosis found that.
    shares: dict[str, dict[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seen:
    """One tensor beside what it should have been, and what was said of it."""

    key: str
    expected: Values
    got: Values
    judged: Judged
    # The token of each row; None where rows belong to no token.
    tokens: Tokens | None


def draw(case: Case, oracle: Trace, assembly: Assembly, seen: list[Seen]) -> Picture:
    """Everything that fits."""
    gradients = [each for each in seen if each.key.startswith(GRADIENT)]
    largest = max((_size(each.expected) for each in gradients), default=0.0)
    return Picture(
        owners=_pieces(case, assembly.trace["nll"]),
        computed=assembly.local_rows,
        maps=tuple(_maps(case, seen)),
        numbers=tuple(_numbers(case, oracle, {each.key: each for each in seen})),
        ratios={each.key: _ratio(each, ZERO * largest) for each in gradients},
    )


def _pieces(case: Case, nll: Entry) -> tuple[tuple[int, int], ...]:
    owner_n = np.full(case.tokens, -1)
    if nll.tokens is not None and nll.owners is not None:
        owner_n[nll.tokens] = nll.owners
    starts = np.flatnonzero(np.diff(owner_n, prepend=-2))
    if len(starts) > MOST_PIECES:
        return ()
    return tuple(zip(starts.tolist(), owner_n[starts].tolist(), strict=True))


def _maps(case: Case, seen: list[Seen]) -> Iterator[TokenMap]:
    room = MOST_SIGNS
    for each in seen:
        if each.tokens is None or not each.judged.wrong.size:
            continue
        share = shares_of_budget(each.judged)
        heads = share.shape[1] if share.ndim == 3 else 0
        room -= case.tokens * (1 + heads)
        if room < 0:
            return
        of_heads = tuple(_signs(case, each.tokens, share[:, head]) for head in range(heads))
        yield TokenMap(each.key, _signs(case, each.tokens, share), of_heads)


def _signs(case: Case, tokens: Tokens, share: Values) -> str:
    most_t = share.reshape(len(tokens), -1).max(1, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        hundreds_t = 1 + np.floor(np.log10(most_t) / 2)
    level_t = np.where(most_t <= 1, 0, np.clip(hundreds_t, 1, FARTHEST))
    sign_n = np.full(case.tokens, ABSENT)
    sign_n[tokens] = np.where(np.isfinite(level_t), level_t, NO_NUMBER).astype(int).astype(str)
    return "".join(sign_n.tolist())


def _numbers(case: Case, oracle: Trace, seen: Mapping[str, Seen]) -> Iterator[Numbers]:
    if case.tokens > MOST_NUMBERS:
        return
    for key in WANTED:
        if key not in oracle or oracle[key].tokens is None:
            continue
        shown = seen.get(key)
        expected = _by_token(case, oracle[key].tokens, oracle[key].values)
        got = () if shown is None else _by_token(case, shown.tokens, shown.got)
        yield Numbers(key, expected, got)


def _by_token(case: Case, tokens: Tokens | None, values: Values) -> tuple[Number, ...]:
    of_token: list[Number] = [None] * case.tokens
    if tokens is not None and values.ndim == 1:
        for token, value in zip(tokens.tolist(), values.tolist(), strict=True):
            # As many digits as are read; JSON has neither NaN nor infinity.
            is_whole = isinstance(value, int)
            short = value if is_whole else float(f"{value:.{DIGITS}g}")
            of_token[token] = short if abs(short) < np.inf else None
    return tuple(of_token)


def _size(values: Values) -> float:
    return float(np.abs(values).max(initial=0.0))


def _ratio(seen: Seen, zero: float) -> float | None:
    if _size(seen.expected) <= zero:
        return None
    expected, got = (x.astype(np.float64).ravel() for x in (seen.expected, seen.got))
    with np.errstate(invalid="ignore"):
        ratio = float(expected @ got) / float(expected @ expected)
    return float(f"{ratio:.{DIGITS}g}") if abs(ratio) < np.inf else 0.0
