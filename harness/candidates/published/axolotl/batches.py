"""Rows as a prepared data set has them, collated by the released collators.

A batch has one more column, the numbers of its tokens from one; the library pads it with zeros.

Legend: L a pack's tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn import functional as F

from harness.candidates.published.axolotl import library
from harness.candidates.published.wiring.rows import IGNORED
from harness.candidates.published.wiring.trainer import TOKENS, Batch
from harness.case import Case

# A micro-batch: the numbers of its rows.
Item = dict[str, list[int]]
# The rows of a micro-batch -> its packs, each of which becomes one row of a table.
Packs = Callable[[list[int]], list[list[int]]]


def one_pack(rows: list[int]) -> list[list[int]]:
    return [rows]


def two_packs(rows: list[int]) -> list[list[int]]:
    """Deal rows in turn to two packs, as with a micro_batch_size of 2."""
    return [pack for pack in (rows[::2], rows[1::2]) if pack]


def each_row(rows: list[int]) -> list[list[int]]:
    return [[row] for row in rows]


class Numbering:
    """A mixin before a released collator: takes an item with the numbers of its rows."""

    case: Case
    packs: Packs

    def __call__(self: Any, items: list[Item]) -> Batch:
        rows = items[0]["rows"]
        packs, cut = self.packs(rows), self.cp_shard
        # The library may have put its cut into the collator; the numbers are cut as well.
        self.cp_shard = (lambda batch: cut(self.numbered(batch, packs))) if cut else None
        try:
            batch: Batch = super().__call__(self.features(packs))  # type: ignore[misc]
        finally:
            self.cp_shard = cut
        return batch if cut else self.numbered(batch, packs)

    def features(self: Any, packs: list[list[int]]) -> list[Any]:
        """Return one row of tokens for each pack."""
        return [
            {**_example(self.case, row), "attention_mask": [1] * len(self.case.rows[row])}
            for (row,) in packs
        ]

    def numbered(self: Any, batch: Batch, packs: list[list[int]]) -> Batch:
        return {**batch, TOKENS: numbers(self.case, packs, batch["input_ids"].shape[1])}


class NumberingPacks(Numbering):
    """As `Numbering`, in front of a collator of packs."""

    def features(self: Any, packs: list[list[int]]) -> list[Any]:
        return [
            [
                {**_example(self.case, row), "position_ids": list(range(len(self.case.rows[row])))}
                for row in pack
            ]
            for pack in packs
        ]


def padded(case: Case) -> Any:
    """Return the collator without sample packing; ringmaster pads to what it needs."""
    return _collator(case, Numbering, library.collators.DataCollatorForSeq2Seq, each_row)


def packed(case: Case, *, packs: Packs = one_pack, multiple: bool = True) -> Any:
    """Return the collator with sample packing."""
    released = library.collators.V2BatchSamplerDataCollatorForSeq2Seq
    return _collator(
        case,
        NumberingPacks,
        released,
        packs,
        emit_fa_varlen_kwargs=True,
        # The default of 64 would put all tokens of a case on one rank.
        pad_to_multiple_of=case.sp if multiple else None,
    )


def flattened(case: Case) -> Any:
    """Return the collator with batch flattening, which is transformers'."""
    made: Any = transformers.DataCollatorWithFlattening
    released = made(return_tensors="pt")

    def collate(items: list[Item]) -> Batch:
        rows = items[0]["rows"]
        batch: Batch = released([_example(case, row) for row in rows])
        return {**batch, TOKENS: numbers(case, [rows], batch["input_ids"].shape[1])}

    return collate


def numbers(case: Case, packs: list[list[int]], width: int) -> torch.Tensor:
    """Return the numbers of all tokens from one, padded on the right with zeros."""
    columns = []
    for pack in packs:
        numbers_L = torch.cat(
            [torch.arange(case.offsets[row], case.offsets[row + 1]) + 1 for row in pack]
        )
        columns.append(F.pad(numbers_L, (0, width - len(numbers_L))))
    return torch.stack(columns)


def _collator(
    case: Case, mixin: type[Any], released: type[Any], packs: Packs, **options: Any
) -> Any:
    collator = type(released.__name__, (mixin, released), {})(_tokenizer(case), **options)
    collator.case, collator.packs = case, packs
    return collator


def _example(case: Case, row: int) -> dict[str, Any]:
    """Return a row with labels, which ignore its prompt and all other tokens but targets."""
    ids, targets = case.ids_of(row), case.rows[row].supervised()
    labels = [token if t in targets else IGNORED for t, token in enumerate(ids)]
    return {"input_ids": list(ids), "labels": labels}


def _tokenizer(case: Case) -> Any:
    """Return a tokenizer that pads with the case's token and can do nothing else."""
    words = Tokenizer(WordLevel({"pad": case.pad_id}, unk_token="pad"))  # noqa: S106
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_object=words, pad_token="pad")  # noqa: S106
