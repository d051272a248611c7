"""Reads a padded batch, in the form that training code holds, as a case."""

from collections.abc import Sequence
from typing import Any, cast

from harness.case.case import Case
from harness.case.invalid import InvalidCase
from harness.case.row import Row

Table = Sequence[Sequence[object]]


def from_padded(
    input_ids: Table, attention_mask: Table, loss_mask: Table | None = None, **fields: Any
) -> Case:
    """Return the case of a batch given as lists of rows (`tensor.tolist()`).

    Without a loss mask, every attended token is a target. `fields` are fields of `Case`.
    Raises `InvalidCase` for batches that would train on something other than they seem to:
    float ids, attention with holes, a loss mask on padding.
    """
    supervision = attention_mask if loss_mask is None else loss_mask
    _require_same_shape(input_ids, attention_mask, "attention_mask")
    _require_same_shape(input_ids, supervision, "loss_mask")
    rows, ids = [], []
    for r, (row_ids, attended, mask) in enumerate(
        zip(input_ids, attention_mask, supervision, strict=True)
    ):
        attended_bits = [_read_bit("attention_mask", r, t, bit) for t, bit in enumerate(attended)]
        mask_bits = [_read_bit("loss_mask", r, t, bit) for t, bit in enumerate(mask)]
        real = [t for t, bit in enumerate(attended_bits) if bit]
        if not real:
            raise InvalidCase.because(f"attention_mask[{r}]", list(attended), "an empty row")
        first, last = real[0], real[-1]
        if len(real) != last - first + 1 or (first > 0 and last + 1 < len(attended_bits)):
            raise InvalidCase.because(
                f"attention_mask[{r}]",
                list(attended),
                "real tokens must be one run that touches an end of the row",
            )
        for t, bit in enumerate(mask_bits):
            if bit and not attended_bits[t]:
                raise InvalidCase.because(
                    f"loss_mask[{r}][{t}]", 1, "supervises padding; clear it or attend to it"
                )
        rows.append(
            Row(
                "".join(str(bit) for bit in mask_bits[first : last + 1]),
                "left" if first > 0 else "right",
            )
        )
        # The cast is safe: `Case` refuses ids that are not whole numbers of the vocabulary.
        ids.append(tuple(cast("Sequence[int]", row_ids[first : last + 1])))
    return Case(rows=tuple(rows), ids=tuple(ids), **fields)


def _require_same_shape(ids: Table, other: Table, name: str) -> None:
    if [len(row) for row in ids] != [len(row) for row in other]:
        raise InvalidCase.because(
            name, [len(row) for row in other], f"input_ids has rows of {[len(r) for r in ids]}"
        )


def _read_bit(name: str, r: int, t: int, value: object) -> int:
    if value not in (0, 1):
        raise InvalidCase.because(f"{name}[{r}][{t}]", value, "use 0 or 1")
    return int(value == 1)
