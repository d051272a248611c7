"""The functions of flash-attn 2 beside its kernels: from a padded table to a stream, and back.

Legend: B rows, S tokens of a row, T tokens of the stream, ... the dimensions of a token.
"""

import importlib.util
from importlib import import_module
from typing import Any

import torch
from torch import Tensor


def index_first_axis(x: Tensor, indices_T: Tensor) -> Tensor:
    """Return the chosen rows of a table."""
    if x.ndim < 2:
        raise RuntimeError(f"flash-attn: {tuple(x.shape)} has less than two dimensions")
    return x[indices_T]


def index_put_first_axis(values: Tensor, indices_T: Tensor, first_axis_dim: int) -> Tensor:
    """Return a table with the given rows in their places, and zeros elsewhere."""
    if values.ndim < 2 or indices_T.ndim != 1:
        raise RuntimeError(f"flash-attn: {tuple(values.shape)} has less than two dimensions")
    table = values.new_zeros(first_axis_dim, *values.shape[1:])
    return table.index_put((indices_T,), values)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Return T..., where each token was, cumulative lengths, the longest, and lengths in use."""
    kept_BS = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths_B = kept_BS.sum(-1, dtype=torch.int32)
    indices_T = kept_BS.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(lengths_B.cumsum(0, dtype=torch.int32), (1, 0))
    return (
        index_first_axis(hidden_states.flatten(0, 1), indices_T),
        indices_T,
        ends,
        int(lengths_B.max()),
        attention_mask.sum(-1, dtype=torch.int32),
    )


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return BS..., with zeros for padding."""
    table: Tensor = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return table.reshape(batch, seqlen, *table.shape[1:])


def padding_functions() -> dict[str, Any]:
    """Return the functions of `bert_padding` by name; two are einops', if that is installed."""
    ours = (index_first_axis, index_put_first_axis, unpad_input, pad_input)
    found: dict[str, Any] = {function.__name__: function for function in ours}
    if importlib.util.find_spec("einops") is not None:
        einops = import_module("einops")
        found |= {"rearrange": einops.rearrange, "repeat": einops.repeat}
    return found
