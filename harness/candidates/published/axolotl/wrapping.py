"""How the release is wrapped where a bug of it is mended."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from torch import Tensor

Call = Callable[..., Any]


def applying(wrapper: Callable[[Call], Call]) -> AbstractContextManager[Any]:
    from harness.candidates.published.axolotl import library

    return wrapped(library.sharing, "apply_sequence_parallelism", wrapper)


def wrapped(owner: Any, name: str, wrapper: Callable[[Call], Call]) -> AbstractContextManager[Any]:
    return patch.object(owner, name, wrapper(getattr(owner, name)))


def piece(whole_BS: Tensor, given: dict[str, Any]) -> Tensor:
    """Of the rank that `apply_sequence_parallelism` is called for."""
    pieces = whole_BS.chunk(given["local_world_size"], 1)
    mine: Tensor = pieces[given["local_rank"]]
    return mine.contiguous()
