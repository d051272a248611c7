"""What the ranks emitted, against plain training."""

from typing import Any

import numpy as np

from harness.case import Case
from harness.compare.budget import FP64_RELATIVE, ROUNDING, TIMES, UNITS, ZERO
from harness.reference.rowwise import rowwise
from harness.reference.weights import TORCH_DTYPES


def judge(case: Case, ranks: list[Any]) -> list[str]:
    """What differs, in the order in which it is computed; nothing if all is equal."""
    exact: Any = rowwise(case)
    plain: Any = exact if case.dtype == "fp64" else rowwise(case, TORCH_DTYPES[case.dtype])
    largest = max(np.abs(exact[key][0]).max() for key in exact if key.startswith("grad."))
    found = []
    for key, (values, numbers) in exact.items():
        got, holders, odd = losses(case, ranks) if key == "nll" else copies(key, ranks)
        found += [f"{key}: {what}" for what in odd]
        if got is None:
            continue
        expected, tokens = values, None
        if numbers is not None:
            there = [token in holders for token in numbers]
            tokens, expected = numbers[there], values[there]
            got = got[tokens]
        if got.shape != expected.shape:
            found.append(f"{key}: has shape {got.shape}, expected {expected.shape}")
            continue
        error = np.abs(got - expected)
        # Not `error > ...`: what is not a number must be wrong.
        wrong = np.argwhere(~(error <= allowed(case, values, plain[key][0], largest)))
        if len(wrong):
            at = tuple(wrong[0].tolist())
            where = f"{key} at {list(at)}" if at else key
            if tokens is not None:
                where = f"{key} at {place(case, tokens[at])}, held by rank {holders[tokens[at]]}"
            found.append(
                f"{where}: expected {expected[at]:.12g}, got {got[at]:.12g}; {len(wrong)} of "
                f"{expected.size} elements differ, by {error.max():.3g} at most"
            )
    return found


def allowed(case: Case, exact: Any, plain: Any, largest: float) -> float:
    """How large an error may be: a few roundings; harness/compare/budget.py says why."""
    size = float(np.abs(exact).max(initial=0.0))
    # What is zero but for rounding is as wrong as what it is the difference of.
    size = size if size > ZERO * largest else largest
    if case.dtype == "fp64":
        return FP64_RELATIVE * size
    own = float(np.abs(plain - exact).max(initial=0.0))
    return TIMES[case.dtype] * own + UNITS[case.dtype] * ROUNDING[case.dtype] * size


def losses(case: Case, ranks: list[Any]) -> tuple[Any, dict[int, int], list[str]]:
    """The loss of each token, which rank computed it, and what is odd about that."""
    nll, odd = np.zeros(case.tokens), []
    holders: dict[int, int] = {}
    for rank, pieces in enumerate(ranks):
        mine = [
            row for key, *columns in pieces if key == "nll" for row in zip(*columns, strict=True)
        ]
        for value, token in mine:
            if token in holders:
                odd.append(f"{place(case, token)} is on rank {holders[token]} and on rank {rank}")
            elif token >= 0:
                nll[token], holders[token] = value, rank
        lengths = [len(row) for row in case.rows[rank // case.sp :: case.dp]]
        # Some layouts pad each row to two pieces per rank.
        padded = sum(lengths) + len(lengths) * (2 * case.sp - 1)
        if case.sp > 1 and len(mine) >= sum(lengths) and len(mine) * case.sp > padded:
            odd.append(f"rank {rank} computes all tokens of its replica: nothing is parallel")
    lost = set(range(case.tokens)) - set(holders)
    return nll, holders, odd + [f"{place(case, token)} is on no rank" for token in sorted(lost)]


def copies(key: str, ranks: list[Any]) -> tuple[Any, dict[int, int], list[str]]:
    """The first rank's copy of what all have alike, and what is odd about the others."""
    found = [[values for k, values, _ in pieces if k == key] for pieces in ranks]
    for rank, mine in enumerate(found):
        if len(mine) != 1:
            return None, {}, [f"emitted {len(mine)} times by rank {rank}"]
        if mine[0].tobytes() != found[0][0].tobytes():
            return found[0][0], {}, [f"rank {rank} has other numbers than rank 0"]
    return found[0][0], {}, []


def place(case: Case, token: int) -> str:
    row = max(r for r, first in enumerate(case.offsets[:-1]) if first <= token)
    return f"row {row} position {token - case.offsets[row]}"
