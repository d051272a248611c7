"""What each entry refuses."""

from harness.candidates.published import Limit
from harness.candidates.wiring.limits import decoder, first
from harness.case import Case

DTYPES = ("fp64", "fp32", "bf16")


def trained(case: Case) -> str | None:
    return decoder(case, DTYPES) or first(
        case.loss == "row-mean" and "loss=row-mean: its trainer averages over tokens",
        # A group of one never comes to what guards against it.
        case.sp == 1
        and any(not has_targets(case, rows) for rows in batches(case))
        and "sp=1: the log of a micro-batch without targets is NaN, as torch's mean of nothing is",
    )


def gathered(case: Case) -> str | None:
    return decoder(case, DTYPES)


def batches(case: Case) -> list[list[int]]:
    """The rows of each micro-batch, of which the larger ones are the first."""
    found = []
    for replica in range(case.dp):
        rows = list(range(replica, len(case.rows), case.dp))
        share, larger = divmod(len(rows), case.micro_batches)
        for number in range(case.micro_batches):
            size = share + (number < larger)
            found.append(rows[:size])
            rows = rows[size:]
    return found


def has_targets(case: Case, rows: list[int]) -> bool:
    return any("1" in case.rows[row].mask[1:] for row in rows)


LIMITS: dict[str, Limit] = {"ulysses": trained, "gather": gathered}
