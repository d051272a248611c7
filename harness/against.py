"""What a candidate is compared with: our model's plain training, or its own step at sp 1."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal

Against = Literal["plain", "self"]
PLAIN: Final = "plain"
ITSELF: Final = "self"
_ORACLE = ContextVar("oracle", default=False)


def asked_for_an_oracle() -> bool:
    """Whether a candidate is asked for what its own step is compared with, always in fp64."""
    return _ORACLE.get()


@contextmanager
def asking(*, oracle: bool) -> Iterator[None]:
    token = _ORACLE.set(oracle)
    try:
        yield
    finally:
        _ORACLE.reset(token)
