"""What each entry refuses."""

from harness.candidates.published import Limit
from harness.candidates.wiring.limits import decoder, first
from harness.case import Case

DTYPES = ("fp64", "fp32", "bf16")


def attention(case: Case) -> str | None:
    return decoder(case, DTYPES)


def trained(case: Case) -> str | None:
    return decoder(case, DTYPES) or first(
        case.loss != "micro-mean" and f"loss={case.loss}: it averages the means of micro-batches",
        any(not has_targets(case, rows) for rows in batches(case))
        and "a micro-batch without targets: its mean of nothing is NaN, as torch's is",
    )


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


LIMITS: dict[str, Limit] = {"attention": attention, "shifted": trained, "sft": trained}
