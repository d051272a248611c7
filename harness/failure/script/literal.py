"""Cases as text that a reader sees the batch in."""

import itertools
import textwrap
from collections.abc import Container, Sequence

from harness.case import Case, Row

WIDTH = 99
# Bits up to this run length are easier to read spelled out.
LONGEST_PLAIN_RUN = 40

MODEL = ("heads", "kv_heads", "head_dim", "layers", "vocab", "model", "tied", "window")
STEP = ("sp", "dp", "micro_batches", "loss", "dtype", "kernel", "pad_id", "steps")
AROUND = ("checkpoint", "wrapper", "sync", "compiled", "mixed")
WEIGHTS = ("nudge", "seed")


def literal(name: str, cases: Sequence[Case], fields: Container[str]) -> str:
    """A list of cases, each as these fields of it."""
    body = "".join(f"    {{\n{_fields(case, fields)}    }},\n" for case in cases)
    return f"{name} = [\n{body}]\n"


def _fields(case: Case, wanted: Container[str]) -> str:
    rows = "".join(_row(case, index, row) for index, row in enumerate(case.rows))
    settings = "".join(
        textwrap.fill(
            " ".join(
                f'"{field}":\0{_scalar(getattr(case, field))},'
                for field in fields
                if field in wanted
            ),
            WIDTH,
            initial_indent=" " * 8,
            subsequent_indent=" " * 8,
            break_long_words=False,
        ).replace("\0", " ")
        + "\n"
        for fields in (MODEL, STEP, AROUND, WEIGHTS)
        if any(field in wanted for field in fields)
    )
    return f'        "rows": [\n{rows}        ],\n{settings}'


def _row(case: Case, index: int, row: Row) -> str:
    ids = ", ".join(map(str, case.ids_of(index)))
    one_line = f"            ({case.ids_of(index)}, {_mask(row.mask)}, {_scalar(row.side)}),\n"
    if len(one_line) <= WIDTH:
        return one_line
    wrapped = textwrap.fill(f"{ids},", WIDTH, initial_indent=" " * 20, subsequent_indent=" " * 20)
    outer = " " * 16
    return (
        f"            (\n{outer}(\n{wrapped}\n{outer}),\n"
        f"{outer}{_mask(row.mask)},\n{outer}{_scalar(row.side)},\n            ),\n"
    )


def _mask(mask: str) -> str:
    if len(mask) <= LONGEST_PLAIN_RUN:
        return f'"{mask}"'
    runs = [(bit, len(list(group))) for bit, group in itertools.groupby(mask)]
    parts = [f'"{bit}" * {count}' if count > 1 else f'"{bit}"' for bit, count in runs]
    return " + ".join(parts) if len(parts) <= 4 else f'"{mask}"'


def _scalar(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
