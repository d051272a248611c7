"""Named tensors in global coordinates, in execution order."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

# float64, float32 or int64; arithmetic on them happens in one place only.
Values = npt.NDArray[Any]
Tokens = npt.NDArray[np.int64]

REQUIRED = ("nll", "loss")
GRADIENT = "grad."
# What the step is given by token, and has to be this. Positions may begin anywhere.
_GIVEN = re.compile(r"ids|labels|weight")
# What plain training shows besides, where it is traced.
_LAYER = r"layers\.\d+\.(out|attn\.(q|k|v|out))"
_BETWEEN = re.compile(f"{_GIVEN.pattern}|positions|embed|logits|{_LAYER}")


def is_required(key: str) -> bool:
    """Whether every candidate must emit this key."""
    return key in REQUIRED or key.startswith(GRADIENT)


def is_of_plain_training(key: str) -> bool:
    """Whether plain training has such a tensor, though a candidate need not emit it."""
    return _BETWEEN.fullmatch(key) is not None


def is_given(key: str) -> bool:
    """Whether plain training knows it without any model."""
    return _GIVEN.fullmatch(key) is not None


def is_light(shape: Sequence[int], *, by_token: bool) -> bool:
    """Whether it travels in every run of a step that is compared with itself.

    Metrics do, and one number for each token; what a layer computes has as many as it is wide.
    """
    return not by_token or all(size == 1 for size in shape[1:])


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: row i belongs to token `tokens[i]`, ascending; or, without tokens, the whole."""

    values: Values
    tokens: Tokens | None = None
    # Which rank reported each row, where ranks did; None for a reference or a replica.
    owners: Tokens | None = None

    @property
    def is_light(self) -> bool:
        return is_light(self.values.shape, by_token=self.tokens is not None)

    def renumbered(self, numbers: Tokens, origins: Tokens) -> "Entry":
        """Under `numbers[i]` the row of token `origins[i]`, where there is one."""
        if self.tokens is None:
            return self
        known = np.isin(origins, self.tokens)
        rows = np.searchsorted(self.tokens, origins[known])
        owners = None if self.owners is None else self.owners[rows]
        return Entry(self.values[rows], numbers[known], owners)


class Trace:
    """Entries by key; the order of keys is the order of execution."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, key: str, tensor: "torch.Tensor", tokens: "torch.Tensor | None" = None) -> None:
        """Record a tensor whose rows already stand in ascending token order."""
        self.put(key, Entry(to_numpy(tensor), None if tokens is None else tokens.cpu().numpy()))

    def put(self, key: str, entry: Entry) -> None:
        self._entries[key] = entry

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def only(self, keys: Container[str]) -> "Trace":
        """The entries of these keys."""
        kept = Trace()
        for key in self:
            if key in keys:
                kept.put(key, self[key])
        return kept

    def renumbered(self, origins: Mapping[int, int]) -> "Trace":
        """Under number n what token `origins[n]` has here; tokens that no number names go."""
        numbers = np.array(sorted(origins), np.int64)
        tokens = np.array([origins[n] for n in sorted(origins)], np.int64)
        moved = Trace()
        for key in self:
            moved.put(key, self[key].renumbered(numbers, tokens))
        return moved

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)


def to_numpy(tensor: "torch.Tensor") -> Values:
    """The values on the host; half precisions are widened, which loses nothing."""
    import torch

    host = tensor.detach().cpu()
    if host.dtype in (torch.bfloat16, torch.float16):
        host = host.float()
    values: Values = host.numpy()
    return values
