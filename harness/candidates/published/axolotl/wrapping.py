"""Wrap the function that cuts a batch, for mends."""

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from harness.candidates.published.wiring.mending import Around, wrapped


def wrapping_the_cut(around: Around) -> AbstractContextManager[Any]:
    from harness.candidates.published.axolotl import library

    return wrapped(library.sharing, "apply_sequence_parallelism", around)


def piece(whole_BS: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the piece of the rank that `apply_sequence_parallelism` is called for."""
    pieces = whole_BS.chunk(options["local_world_size"], 1)
    own: Tensor = pieces[options["local_rank"]]
    return own.contiguous()


def missing(batch: dict[str, Any], options: dict[str, Any]) -> int:
    """Return how much padding the library adds to a batch."""
    more: int = -batch["input_ids"].shape[1] % options["local_world_size"]
    return more
