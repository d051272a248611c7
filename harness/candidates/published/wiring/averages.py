"""Over which sets of rows a loss averages; it is the mean of the means of the sets."""

from collections.abc import Callable, Iterable

from harness.candidates.published.wiring.limits import dealt, first, transformers
from harness.case import Case

Sets = Iterable[Iterable[int]]
Average = Callable[[Case], Sets]


def whole(case: Case) -> Sets:
    """Return one set of all rows: the loss is the mean over every target."""
    return [range(len(case.rows))]


def replicas(case: Case) -> Sets:
    """Return the rows of each replica."""
    return [range(replica, len(case.rows), case.dp) for replica in range(case.dp)]


def micro_batches(case: Case) -> Sets:
    """Return the rows of each micro-batch, replica by replica."""
    return [rows for replica in range(case.dp) for rows in dealt(case, replica)]


def micro_batches_of_all_replicas(case: Case) -> Sets:
    """Return, for each number of a micro-batch, the rows that have it in any replica."""
    by_replica = [dealt(case, replica) for replica in range(case.dp)]
    return [sorted(row for rows in same for row in rows) for same in zip(*by_replica, strict=True)]


def single_rows(case: Case) -> Sets:
    """Return each row by itself."""
    return [[row] for row in range(len(case.rows))]


def requested(case: Case) -> Sets:
    """Return the sets over which the case's own loss averages."""
    averages: dict[str, Average] = {
        "token-mean": whole,
        "micro-mean": micro_batches,
        "row-mean": single_rows,
    }
    return averages[case.loss](case)


def averages_as_requested(case: Case, average: Average) -> bool:
    """Whether a loss over the sets of `average` is the case's loss."""
    return sorted(map(tuple, average(case))) == sorted(map(tuple, requested(case)))


def other_average(case: Case, average: Average, reason: str) -> str | None:
    """Refuse a case whose loss averages over other sets than those of `average`."""
    return first(not averages_as_requested(case, average) and f"loss={case.loss}: {reason}")


def context_parallel(case: Case, average: Average) -> str | None:
    """Refuse what a trainer of transformers cannot run under accelerate's context parallelism."""
    window = case.window is not None and (
        f"window={case.window}: accelerate refuses attention that is not full"
    )
    has_empty_set = any(
        not any(case.rows[row].supervised() for row in rows) for rows in average(case)
    )
    return (
        transformers(case)
        or first(
            window,
            has_empty_set
            and "no target where it averages: it divides by their number, on one rank too",
        )
        or other_average(case, average, "it averages otherwise")
    )
