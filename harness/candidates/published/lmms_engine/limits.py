"""What each entry refuses."""

from functools import partial
from itertools import accumulate, pairwise

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import first, rows_by_micro_batch, transformers
from harness.case import Case, Row


def patched(case: Case) -> str | None:
    """A Qwen as the library patches it."""
    return transformers(case) or first(
        case.model == "llama" and "model=llama: it patches Qwens only",
        case.window is not None
        and f"window={case.window}: a patched model has none, on one rank as on many",
        not all(all(pieces(rows, case.sp)) for rows in rows_by_micro_batch(case))
        and "a rank whose tokens ask for no prediction: Liger divides by their number",
    )


def pieces(rows: tuple[Row, ...], sp: int) -> list[bool]:
    """For each rank of a sequence, whether two of its tokens follow each other in a row."""
    ends = [0, *accumulate(map(len, rows))]
    size = -(-ends[-1] // sp)
    # Padding is taken for a row.
    ends.append(size * sp)
    return [
        any(min(end, start + size) - max(begin, start) > 1 for begin, end in pairwise(ends))
        for start in range(0, size * sp, size)
    ]


def means(case: Case) -> str | None:
    """The trainer averages means of micro-batches."""
    own = case.micro_batches * case.dp == len(case.rows)
    computes = {
        "micro-mean": True,
        "token-mean": case.micro_batches == 1 and case.dp == 1,
        "row-mean": own,
    }
    return patched(case) or first(
        not computes[case.loss] and f"loss={case.loss}: it averages means of micro-batches"
    )


def newer(case: Case) -> str | None:
    """A Qwen3, which attends by sdpa if asked to, and is the language model of a Qwen3-VL."""
    return means(case) or first(case.model != "qwen3" and f"model={case.model}: not a Qwen3")


def counted(case: Case, *, across: bool) -> str | None:
    """The trainer of transformers divides by a number of targets: of all, or of a replica."""
    replicas = [case.rows[d :: case.dp] for d in range(case.dp)]
    empty = [not any(row.supervised() for row in rows) for rows in replicas]
    computes = {
        "token-mean": across or case.dp == 1,
        "micro-mean": case.micro_batches == 1 and (not across or case.dp == 1),
        "row-mean": len(case.rows) == (1 if across else case.dp),
    }
    return patched(case) or first(
        not computes[case.loss] and f"loss={case.loss}: it averages over tokens",
        (all(empty) if across else any(empty))
        and "no targets: transformers divides by their number",
    )


LIMITS: dict[str, Limit] = {
    "fsdp2": means,
    "fsdp2-sdpa": newer,
    "fsdp2-vl": newer,
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
