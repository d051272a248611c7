"""A trace: named tensors with global token numbers, in execution order."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

# Arrays of float64, float32 or int64.
Values = npt.NDArray[Any]
Tokens = npt.NDArray[np.int64]

REQUIRED = ("nll", "loss")
GRADIENT = "grad."
# Numbers for a log, beside the loss.
METRIC = "metric."
# A parameter that plain training does not train.
FROZEN = "frozen/"
# Columns of the batch of a recipe, by what makes them: the seed, or another model. Modules have
# names with dots.
COLUMN = "column/"
DRAWN, COMPUTED = f"{COLUMN}drawn/", f"{COLUMN}computed/"
# Inputs of the step that the case determines. Positions are not among them: a step may count
# them from any number.
_GIVEN = re.compile(r"ids|labels|weight")
# All optional keys of plain training: the inputs, and what a traced run has between them and nll.
_LAYER = r"layers\.\d+\.(out|attn\.(q|k|v|out))"
_OPTIONAL = re.compile(f"{_GIVEN.pattern}|positions|embed|logits|{_LAYER}")


def is_required(key: str) -> bool:
    """Return whether every candidate must emit this key."""
    return key in REQUIRED or key.startswith(GRADIENT)


def is_kept(key: str) -> bool:
    """Return whether a golden keeps this tensor: a candidate is held to it, if it has it."""
    return is_required(key) or key.startswith((METRIC, FROZEN))


def is_of_plain_training(key: str) -> bool:
    """Return whether plain training has this key and a candidate may leave it out."""
    return _OPTIONAL.fullmatch(key) is not None


def is_input(key: str) -> bool:
    """Return whether the case alone determines this tensor, without any model."""
    return _GIVEN.fullmatch(key) is not None


def is_small(shape: Sequence[int], *, by_token: bool) -> bool:
    """Return whether a tensor is small enough to be sent in every run, traced or not.

    Metrics and one number per token are; the activations of a layer are not.
    """
    return not by_token or all(size == 1 for size in shape[1:])


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a trace.

    With tokens, which ascend, row i belongs to token `tokens[i]`. Without, it is a replica.
    """

    values: Values
    tokens: Tokens | None = None
    # The rank that reported each row; None in the trace of a reference and for a replica.
    owners: Tokens | None = None

    @property
    def is_light(self) -> bool:
        return is_small(self.values.shape, by_token=self.tokens is not None)

    def renumbered(self, numbers: Tokens, origins: Tokens) -> "Entry":
        """Return the entry in which token `origins[i]`, if it has a row, is `numbers[i]`."""
        if self.tokens is None:
            return self
        present = np.isin(origins, self.tokens)
        rows = np.searchsorted(self.tokens, origins[present])
        owners = None if self.owners is None else self.owners[rows]
        return Entry(self.values[rows], numbers[present], owners)


NO_TOKENS = Entry(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))


class Trace:
    """The tensors of one run: entries by key, in the order of execution."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, key: str, tensor: "torch.Tensor", tokens: "torch.Tensor | None" = None) -> None:
        """Record a tensor whose rows are in ascending token order."""
        self.put(key, Entry(to_numpy(tensor), None if tokens is None else tokens.cpu().numpy()))

    def put(self, key: str, entry: Entry) -> None:
        self._entries[key] = entry

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def only(self, keys: Container[str]) -> "Trace":
        """Return a trace with the entries of these keys."""
        kept = Trace()
        for key in self:
            if key in keys:
                kept.put(key, self[key])
        return kept

    def renumbered(self, origins: Mapping[int, int]) -> "Trace":
        """Return a trace in which token `origins[n]` has the number n; drop all other tokens."""
        numbers = np.array(sorted(origins), np.int64)
        tokens = np.array([origins[n] for n in sorted(origins)], np.int64)
        renumbered = Trace()
        for key in self:
            renumbered.put(key, self[key].renumbered(numbers, tokens))
        return renumbered

    @property
    def losses(self) -> Entry:
        """The losses of tokens; an empty entry if the step does not show them."""
        return self.get("nll") or NO_TOKENS

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)


def to_numpy(tensor: "torch.Tensor") -> Values:
    """Return the values as an array on the host; widen half precisions, which loses nothing."""
    import torch

    host = tensor.detach().cpu()
    if host.dtype in (torch.bfloat16, torch.float16):
        host = host.float()
    values: Values = host.numpy()
    return values
