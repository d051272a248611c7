"""How mends wrap the release."""

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from harness.candidates.published.wiring.mending import Around, wrapped


def applying(around: Around) -> AbstractContextManager[Any]:
    from harness.candidates.published.axolotl import library

    return wrapped(library.sharing, "apply_sequence_parallelism", around)


def piece(whole_BS: Tensor, given: dict[str, Any]) -> Tensor:
    """The piece of the rank that `apply_sequence_parallelism` is called for."""
    pieces = whole_BS.chunk(given["local_world_size"], 1)
    mine: Tensor = pieces[given["local_rank"]]
    return mine.contiguous()
