"""The `emit` of a rank: check a tensor, copy it, and keep it."""

import contextlib
import os
from collections import Counter
from functools import cache

import torch

from harness.trace import (
    COLUMN,
    FROZEN,
    GRADIENT,
    PAD_TOKEN,
    Fragment,
    digest,
    is_input,
    is_required,
    is_small,
    to_numpy,
)
from harness.trace.trace import Tokens, Values
from harness.watch.learning import Learning

PROGRESS_BYTES = 128
# Under this key a step reports how many bytes it sent in ways that torch does not see.
SENT = "sent"
# The key under which a step without losses of tokens reports how many tokens it embedded at once.
EMBEDDED = "embedded"
# The progress of a rank before its candidate has emitted anything.
RECEIVED = "case received"


class BadFragment(ValueError):
    """The candidate emitted something that cannot be judged."""


class Recorder:
    """Collects the fragments of one rank for one case."""

    def __init__(
        self, rank: int, tokens: int, *, traced: bool, progress: int, learns: bool = False
    ) -> None:
        self._learning = _learning() if learns else None
        if self._learning:
            self._learning.begin()
        # Which gradients were not emitted, once `fragments` was called, if the run `learns`.
        self.unemitted = ""
        self._rank, self._tokens = rank, tokens
        self.traced, self._progress = traced, progress
        self._kept: list[tuple[str, torch.Tensor, Tokens | None]] = []
        self._is_copying = False
        # Keys that were emitted and are not sent; a dict keeps their order.
        self.skipped: dict[str, None] = {}
        # Bytes that the step reported under `SENT`.
        self.sent = 0
        # Tokens that the step reported under `EMBEDDED`.
        self.embedded = 0
        self.note_progress(RECEIVED)

    def note_progress(self, key: str) -> None:
        """Note where this rank is, in a file that outlives it."""
        # A full disk is not the candidate's fault.
        with contextlib.suppress(OSError):
            os.pwrite(self._progress, key.encode()[:PROGRESS_BYTES].ljust(PROGRESS_BYTES), 0)

    def __call__(self, key: str, tensor: torch.Tensor, tokens: torch.Tensor | None = None) -> None:
        is_key = isinstance(key, str) and key.isprintable()
        if not is_key or not isinstance(tensor, torch.Tensor):
            raise BadFragment(f"emit({key!r}, ...): needs a key that can be printed, and a tensor")
        self.note_progress(key)
        if key == SENT:
            self.sent += _count(key, tensor)
            return
        if key == EMBEDDED:
            self.embedded = _count(key, tensor)
            return
        if tokens is not None and not self._should_send(key, tensor):
            self.skipped[key] = None
            return
        if tensor.is_complex() or tensor.layout != torch.strided:
            raise BadFragment(
                f"key {key!r}: {tensor.dtype} in {tensor.layout}; emit a dense tensor that is not "
                "complex"
            )
        shape = tuple(tensor.shape)
        if key == "nll" and (tokens is None or len(shape) != 1):
            raise BadFragment(
                f"key 'nll': shape {shape}; emit one loss per token of this rank, with "
                "the token numbers"
            )
        if key == "loss" and shape:
            raise BadFragment(f"key 'loss': shape {shape}; emit a scalar")
        numbers = None if tokens is None else self._numbers(key, tokens, shape)
        # Copy, because the candidate may change the tensor in place. A copy from a device runs
        # while the candidate goes on, so that nothing waits for each tensor.
        values = tensor.detach().to("cpu", non_blocking=True, copy=True)
        self._is_copying = self._is_copying or tensor.device.type != "cpu"
        self._kept.append((key, values, numbers))

    def _should_send(self, key: str, tensor: torch.Tensor) -> bool:
        """Whether the values of a tensor with tokens may be compared with anything, or shown."""
        if self.traced or is_required(key) or is_input(key) or key.startswith((COLUMN, FROZEN)):
            return True
        # Positions may start anywhere, and may differ at sp 1, where rows stand alone.
        may_differ = self._learning is None or key == "positions"
        return not may_differ and is_small(tensor.shape, by_token=True)

    def _numbers(self, key: str, tokens: torch.Tensor, shape: tuple[int, ...]) -> Tokens:
        if tokens.dtype != torch.int64 or tokens.ndim != 1 or shape[:1] != tokens.shape:
            raise BadFragment(
                f"key {key!r}: tokens of shape {tuple(tokens.shape)} and {tokens.dtype} for "
                f"values of shape {shape}; give one int64 number per row"
            )
        numbers: Tokens = tokens.cpu().numpy().copy()
        if numbers.size and not PAD_TOKEN <= numbers.min() <= numbers.max() < self._tokens:
            raise BadFragment(
                f"key {key!r}: token numbers reach from {numbers.min()} to {numbers.max()}; the "
                f"case has 0 to {self._tokens - 1}, and {PAD_TOKEN} for padding"
            )
        return numbers

    @property
    def parameters(self) -> Counter[tuple[int, ...]]:
        """How many emitted gradients have each shape, vectors excepted."""
        gradients = (tuple(x.shape) for key, x, _ in self._kept if key.startswith(GRADIENT))
        return Counter(shape for shape in gradients if len(shape) > 1)

    def fragments(self) -> list[Fragment]:
        """Wait for all copies, and return everything that was emitted."""
        if self._is_copying:
            torch.accelerator.synchronize()
        if self._learning:
            gradients = {k: v for k, v, _ in self._kept if k.startswith(GRADIENT)}
            self.unemitted = self._learning.unemitted(gradients)
        return [self._fragment(key, to_numpy(kept), numbers) for key, kept, numbers in self._kept]

    def _fragment(self, key: str, values: Values, numbers: Tokens | None) -> Fragment:
        if numbers is None:
            # A step that is compared with itself may emit a metric on any one rank.
            is_metric = self._learning is not None and not is_required(key)
            sent = values if self.traced or self._rank == 0 or is_metric else None
            return Fragment(key, sent, digest=digest(values))
        is_real = numbers != PAD_TOKEN
        pads = int(numbers.size - is_real.sum())
        return Fragment(key, values[is_real], numbers[is_real], pads=pads)


@cache
def _learning() -> Learning:
    """Return the one instance of this process: models may be kept from run to run."""
    return Learning()


def _count(key: str, tensor: torch.Tensor) -> int:
    if tensor.shape or tensor.dtype not in (torch.int32, torch.int64) or tensor < 0:
        what = "bytes this rank sent" if key == SENT else "tokens this rank embedded"
        raise BadFragment(f"key {key!r}: emit how many {what}, as a whole number")
    return int(tensor)
