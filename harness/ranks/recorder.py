"""What `emit` does on a rank: check, copy, keep."""

import os

import numpy as np
import torch

from harness.trace import PAD_TOKEN, Fragment, digest, is_required, to_numpy

PROGRESS_BYTES = 128


class BadFragment(ValueError):
    """The candidate emitted something that cannot be judged."""


class Recorder:
    """Collects one rank's fragments for one case."""

    def __init__(self, rank: int, tokens: int, *, traced: bool, progress: int) -> None:
        self.fragments: list[Fragment] = []
        self.last_key = ""
        self._rank, self._tokens = rank, tokens
        self.traced, self._progress = traced, progress
        self.reached("case received")

    def reached(self, key: str) -> None:
        """Note where this rank is, in a file that outlives it."""
        self.last_key = key
        os.pwrite(self._progress, key.encode()[:PROGRESS_BYTES].ljust(PROGRESS_BYTES), 0)

    def __call__(self, key: str, tensor: torch.Tensor, tokens: torch.Tensor | None = None) -> None:
        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise BadFragment(f"emit({key!r}, ...): needs a text key and a tensor")
        self.reached(key)
        if not (self.traced or is_required(key)):
            return
        # A copy: the candidate may go on to change the tensor in place.
        values = np.array(to_numpy(tensor))
        if key == "nll" and (tokens is None or values.ndim != 1):
            raise BadFragment(
                f"key 'nll': shape {values.shape}; emit one loss per token of this rank, with "
                "the token numbers"
            )
        if key == "loss" and values.ndim:
            raise BadFragment(f"key 'loss': shape {values.shape}; emit a scalar")
        if tokens is None:
            seen = digest(values)
            sent = values if self.traced or self._rank == 0 else None
            self.fragments.append(Fragment(key, sent, digest=seen))
            return
        if tokens.dtype != torch.int64 or tokens.ndim != 1 or values.shape[:1] != tokens.shape:
            raise BadFragment(
                f"key {key!r}: tokens of shape {tuple(tokens.shape)} and {tokens.dtype} for "
                f"values of shape {values.shape}; give one int64 number per row"
            )
        numbers = tokens.cpu().numpy()
        if numbers.size and not PAD_TOKEN <= numbers.min() <= numbers.max() < self._tokens:
            raise BadFragment(
                f"key {key!r}: token numbers reach from {numbers.min()} to {numbers.max()}; the "
                f"case has 0 to {self._tokens - 1}, and {PAD_TOKEN} for padding"
            )
        real = numbers != PAD_TOKEN
        self.fragments.append(
            Fragment(key, values[real], numbers[real], pads=int(numbers.size - real.sum()))
        )
