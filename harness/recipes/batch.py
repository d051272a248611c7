"""Rows of a case as the padded batch that a training script is given.

Legend: B rows, S columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from harness.case import Case
from harness.recipes.columns import Column, Drawn

IGNORED = -100
Batch = dict[str, Tensor]


@contextmanager
def describing(batch: Batch, *, is_list: bool = False) -> Iterator[None]:
    """Add to an error of a wrong name or index what the batch is, or each batch of the list."""
    try:
        yield
    except (KeyError, TypeError) as error:
        wrong = error.args[0] if error.args else None
        if isinstance(wrong, str) and isinstance(error, KeyError) and wrong not in batch:
            error.args = (f"{wrong}; the batch has {', '.join(batch)}",)
        elif wrong == 0 or "indices must be integers" in str(wrong):
            is_now = "a list of dicts, because of" if is_list else "a dict; it is a list with"
            error.args = (f"{wrong}; the batch is {is_now} micro_batches=True",)
        raise


def table(
    case: Case,
    rows: Sequence[int],
    columns: Mapping[str, Column],
    dtype: torch.dtype,
    *,
    wider: int = 0,
) -> Batch:
    """These rows, each padded on its own side to the longest, and `wider` by some columns.

    `labels` are not shifted, as transformers has them: the id of a token that is a target, else
    IGNORED. A row's first token never is one. `row` is the number of a row, and `replica` and
    `micro_batch` are where it is trained on, for a loss that pairs rows or averages over these.
    """
    size = len(rows), wider + max(len(case.rows[row]) for row in rows)
    places = dict(_places(case))
    batch: Batch = {
        "input_ids": torch.full(size, case.pad_id),
        "attention_mask": torch.zeros(size, dtype=torch.int64),
        "position_ids": torch.zeros(size, dtype=torch.int64),
        "labels": torch.full(size, IGNORED),
        "row": torch.tensor(rows),
        "replica": torch.tensor([places[row][0] for row in rows]),
        "micro_batch": torch.tensor([places[row][1] for row in rows]),
    }
    drawn = {name: column for name, column in columns.items() if isinstance(column, Drawn)}
    for name, column in drawn.items():
        batch[name] = torch.zeros(size[:1] if column.by == "row" else size, dtype=dtype)
    for b, number in enumerate(rows):
        row = case.rows[number]
        start = size[1] - len(row) if row.side == "left" else 0
        columns_S = slice(start, start + len(row))
        ids = torch.tensor(case.ids_of(number))
        is_target = torch.tensor([bit == "1" for bit in row.mask])
        is_target[0] = False
        batch["input_ids"][b, columns_S] = ids
        batch["attention_mask"][b, columns_S] = 1
        batch["position_ids"][b, columns_S] = torch.arange(len(row))
        batch["labels"][b, columns_S] = ids.masked_fill(~is_target, IGNORED)
        for name, column in drawn.items():
            values = as_data(column.of_row(case, number, name), dtype)
            if column.by == "row":
                batch[name][b] = values
            else:
                batch[name][b, columns_S] = values * (is_target if column.by == "target" else 1)
    return batch


def as_data(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Hold what a data loader has in fp32, whatever the case computes in."""
    return values.float().to(dtype)


def rows_of(case: Case, replica: int) -> list[list[int]]:
    """The rows of each micro-batch of a replica."""
    mine = torch.arange(replica, len(case.rows), case.dp)
    return [part.tolist() for part in mine.tensor_split(case.micro_batches)]


def _places(case: Case) -> list[tuple[int, tuple[int, int]]]:
    """The replica of each row, and its micro-batch there."""
    return [
        (row, (replica, number))
        for replica in range(case.dp)
        for number, rows in enumerate(rows_of(case, replica))
        for row in rows
    ]
