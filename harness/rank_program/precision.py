"""Switch off the hardware shortcuts by which a matmul is less precise than its dtype.

A rank switches them off for good. A controller does so only while plain training computes beside
ranks, because other code runs in that process as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Each lets a matmul compute, or accumulate, in less than its dtype.
SHORTCUTS: tuple[tuple[Any, str], ...] = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
)


def use_full_precision() -> None:
    """Switch all shortcuts off for this process."""
    for shortcut in SHORTCUTS:
        setattr(*shortcut, False)


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch all shortcuts off in a block, and restore them afterwards."""
    before = [getattr(*shortcut) for shortcut in SHORTCUTS]
    use_full_precision()
    try:
        yield
    finally:
        for shortcut, value in zip(SHORTCUTS, before, strict=True):
            setattr(*shortcut, value)
