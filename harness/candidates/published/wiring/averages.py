"""Which sets of rows a loss averages over, before it averages their means."""

from collections.abc import Callable, Iterable

from harness.candidates.published.wiring.limits import dealt, first, transformers
from harness.case import Case

Sets = Iterable[Iterable[int]]
Average = Callable[[Case], Sets]


def whole(case: Case) -> Sets:
    """All rows in one: the mean over every target."""
    return [range(len(case.rows))]


def replicas(case: Case) -> Sets:
    """The rows of each replica."""
    return [range(replica, len(case.rows), case.dp) for replica in range(case.dp)]


def micro_batches(case: Case) -> Sets:
    """The rows of each micro-batch, replica by replica."""
    return [rows for replica in range(case.dp) for rows in dealt(case, replica)]


def asked(case: Case) -> Sets:
    """The sets that the case's own loss averages over."""
    averages: dict[str, Average] = {
        "token-mean": whole,
        "micro-mean": micro_batches,
        "row-mean": lambda case: [[row] for row in range(len(case.rows))],
    }
    return averages[case.loss](case)


def unlike(case: Case, sets: Sets) -> str | None:
    """Why a loss that averages over these sets is not the one that a case asks for."""
    computed = sorted(map(tuple, sets))
    empty = any(not any(case.rows[row].supervised() for row in rows) for rows in computed)
    return first(
        empty and "no target where it averages: it divides by their number, on one rank too",
        computed != sorted(map(tuple, asked(case))) and f"loss={case.loss}: it averages otherwise",
    )


def context_parallel(case: Case, average: Average) -> str | None:
    """What a trainer of transformers refuses under accelerate's context parallelism."""
    window = case.window is not None and (
        f"window={case.window}: accelerate refuses attention that is not full"
    )
    return transformers(case) or first(window) or unlike(case, average(case))
