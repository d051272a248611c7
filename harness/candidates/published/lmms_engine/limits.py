"""Cases that each entry refuses."""

from functools import partial
from itertools import accumulate, pairwise

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring import averages
from harness.candidates.published.wiring.averages import other_average
from harness.candidates.published.wiring.limits import first, rows_by_micro_batch, transformers
from harness.case import Case, Row


def patched(case: Case) -> str | None:
    """Refuse what a Qwen cannot run as the library patches it."""
    return transformers(case) or first(
        case.model == "llama" and "model=llama: it patches Qwens only",
        case.window is not None
        and f"window={case.window}: a patched model has none, on one rank as on many",
        not all(all(has_pairs(rows, case.sp)) for rows in rows_by_micro_batch(case))
        and "a rank whose tokens ask for no prediction: Liger divides by their number",
    )


def has_pairs(rows: tuple[Row, ...], sp: int) -> list[bool]:
    """Return for each rank of a sequence whether two of its tokens are neighbours in a row."""
    ends = [0, *accumulate(map(len, rows))]
    size = -(-ends[-1] // sp)
    # Padding is taken for a row.
    ends.append(size * sp)
    return [
        any(min(end, start + size) - max(begin, start) > 1 for begin, end in pairwise(ends))
        for start in range(0, size * sp, size)
    ]


def means(case: Case) -> str | None:
    """Refuse losses other than the mean of the means of micro-batches."""
    return patched(case) or other_average(
        case, averages.micro_batches, "it averages means of micro-batches"
    )


def qwen3(case: Case) -> str | None:
    """Refuse all but a Qwen3: it can use sdpa, and is the language model of a Qwen3-VL."""
    return means(case) or first(case.model != "qwen3" and f"model={case.model}: not a Qwen3")


def counted(case: Case, *, across: bool) -> str | None:
    """Refuse what differs from a sum over a number of targets: of all, or of a replica."""
    average = averages.whole if across else averages.replicas
    has_targets = [any(case.rows[row].supervised() for row in rows) for rows in average(case)]
    return (
        patched(case)
        or other_average(case, average, "it averages over tokens")
        or first(not all(has_targets) and "no targets: transformers divides by their number")
    )


LIMITS: dict[str, Limit] = {
    "fsdp2": means,
    "fsdp2-sdpa": qwen3,
    "fsdp2-vl": qwen3,
    "hf": partial(counted, across=True),
    "hf-replica": partial(counted, across=False),
}
STATED = {
    "fsdp2": "dtype=fp32 window=none model=qwen2,qwen3",
    "fsdp2-sdpa": "dtype=fp32 window=none model=qwen3",
    "fsdp2-vl": "dtype=fp32 window=none model=qwen3",
    "hf": "dtype=fp32 window=none model=qwen2,qwen3",
    "hf-replica": "dtype=fp32 window=none model=qwen2,qwen3",
}
