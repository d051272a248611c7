"""What a dtype promises also holds on hardware that is faster without.

A rank keeps it for good. A controller keeps it while plain training computes beside ranks: what
else runs in that process is not ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Each lets a matmul compute, or add up, in less than its dtype.
SHORTCUTS: tuple[tuple[Any, str], ...] = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
)


def keep() -> None:
    """No shortcuts from now on."""
    for shortcut in SHORTCUTS:
        setattr(*shortcut, False)


@contextmanager
def kept() -> Iterator[None]:
    """No shortcuts in here."""
    before = [getattr(*shortcut) for shortcut in SHORTCUTS]
    keep()
    try:
        yield
    finally:
        for shortcut, value in zip(SHORTCUTS, before, strict=True):
            setattr(*shortcut, value)
