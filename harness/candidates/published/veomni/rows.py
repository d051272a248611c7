"""Rows as a data set of veomni has them."""

from typing import Any

from harness.recipes.batch import Batch

# One row: its ids, mask and labels.
Row = dict[str, list[int]]


class Template:
    """A chat template that is given a row in the place of messages."""

    def encode_messages(self, messages: list[Row], *, max_seq_len: int) -> Row:
        del max_seq_len
        return messages[0]


def rows_of(batch: Batch) -> list[Row]:
    """Return the rows of a micro-batch in their order, each without padding."""
    rows = []
    for b in batch["row"].argsort().tolist():
        real_S = batch["attention_mask"][b].bool()
        row = {
            name: batch[name][b][real_S].tolist()
            for name in ("input_ids", "attention_mask", "labels")
        }
        # Without a prompt, a row's first token is a label too.
        row["labels"][0] = row["input_ids"][0]
        rows.append(row)
    return rows


def pairs_of(batch: Batch) -> list[dict[str, Any]]:
    """Return the rows of a micro-batch in pairs, the preferred one first."""
    rows = rows_of(batch)
    return [
        {"chosen": [chosen], "rejected": [rejected]}
        for chosen, rejected in zip(rows[0::2], rows[1::2], strict=True)
    ]
