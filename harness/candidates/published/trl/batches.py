"""Collate rows, as a prepared data set has them, by the released collator."""

from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from harness.candidates.published.wiring.rows import IGNORED, PADDING
from harness.candidates.published.wiring.trainer import TOKENS, Batch
from harness.case import Case
from harness.case.case import MAX_TOKENS

Collate = Callable[[list[dict[str, Any]]], Batch]


def collating(case: Case, released: Collate) -> Collate:
    """Return a collator of items, each a micro-batch; token numbers are collated like ids."""

    def collate(items: list[dict[str, Any]]) -> Batch:
        rows = [row for item in items for row in item["rows"]]
        batch = released([example(case, row) for row in rows])
        # Numbers are shifted above every id, so that the id of padding is below them.
        ids = [range(MAX_TOKENS + case.offsets[r], MAX_TOKENS + case.offsets[r + 1]) for r in rows]
        numbers = released([{"input_ids": list(row)} for row in ids])["input_ids"]
        batch[TOKENS] = (numbers - MAX_TOKENS).clamp(min=PADDING)
        return batch

    return collate


def example(case: Case, row: int) -> dict[str, Any]:
    """Return a row with labels, which ignore its prompt and all other tokens but targets."""
    ids, targets = case.ids_of(row), case.rows[row].supervised()
    labels = [token if t in targets else IGNORED for t, token in enumerate(ids)]
    return {"input_ids": list(ids), "labels": labels}


def tokenizer(vocab: int, pad_id: int) -> Any:
    """Return a tokenizer with a word for each id and the id of padding."""
    words = {str(token): token for token in range(vocab)}
    fast: Any = PreTrainedTokenizerFast
    words_only = Tokenizer(WordLevel(words, unk_token="0"))  # noqa: S106 - a word
    return fast(tokenizer_object=words_only, pad_token=str(pad_id))
