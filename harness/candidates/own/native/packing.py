"""From padded rows to one stream, and from the stream to this rank's shard of it.

Legend: B rows, S longest row, T real tokens of the micro-batch, P pad tokens, L tokens on this
rank, L = (T + P) / sp.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.own.native.rows import Sample

PAD_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """A padded micro-batch."""

    ids_BS: Tensor
    attended_BS: Tensor
    positions_BS: Tensor
    loss_mask_BS: Tensor
    tokens_BS: Tensor


@dataclass(frozen=True, slots=True)
class Stream:
    """The real tokens of a micro-batch, end to end, each with what its successor should be."""

    ids_T: Tensor
    positions_T: Tensor
    labels_T: Tensor
    tokens_T: Tensor
    # Where each token came from in the flattened (B, S).
    indices_T: Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank computes on, and what attention must know about the whole stream."""

    ids_L: Tensor
    positions_L: Tensor
    labels_L: Tensor
    tokens_L: Tensor
    positions_TP: Tensor
    pad: int


def collate(samples: list[Sample], pad_id: int, device: torch.device) -> Batch:
    """Pad rows to the longest, each on its own side."""
    longest = max(len(sample.ids) for sample in samples)

    def table(values: list[tuple[int, ...] | tuple[bool, ...] | range], fill: int) -> Tensor:
        padded = []
        for sample, row in zip(samples, values, strict=True):
            gap = [fill] * (longest - len(row))
            padded.append([*gap, *row] if sample.side == "left" else [*row, *gap])
        return torch.tensor(padded, device=device)

    lengths = [len(sample.ids) for sample in samples]
    attended_BS = table([(1,) * length for length in lengths], 0).bool()
    return Batch(
        ids_BS=table([sample.ids for sample in samples], pad_id),
        attended_BS=attended_BS,
        positions_BS=table([range(length) for length in lengths], 0),
        loss_mask_BS=table([sample.loss_mask for sample in samples], 0).bool(),
        tokens_BS=table([sample.tokens for sample in samples], PAD_TOKEN),
    )


def unpad(batch: Batch) -> Stream:
    """Drop the padding; row order and token order stay. Labels are the ids until shifted."""
    indices_T = batch.attended_BS.flatten().nonzero().squeeze(-1)
    ids_T = batch.ids_BS.flatten()[indices_T]
    return Stream(
        ids_T=ids_T,
        positions_T=batch.positions_BS.flatten()[indices_T],
        labels_T=ids_T,
        tokens_T=batch.tokens_BS.flatten()[indices_T],
        indices_T=indices_T,
    )


def shift(labels_T: Tensor) -> Tensor:
    """Each token's label is the next token of the *whole* stream.

    The last token of a row gets the next row's first, the last of all gets the first of all;
    both are real ids and both carry no weight in the loss. Shifting after the stream is cut
    would instead lose or wrap one label per rank.
    """
    return labels_T.roll(-1)


def pad_to(values_T: Tensor, sp: int, fill: int) -> Tensor:
    """Append `fill` until sp divides the length."""
    return F.pad(values_T, (0, -values_T.shape[0] % sp), value=fill)


def cut(values_TP: Tensor, sp: int, sp_index: int) -> Tensor:
    """This rank's consecutive piece."""
    return values_TP.chunk(sp)[sp_index]


def shard(stream: Stream, pad_id: int, sp: int, sp_index: int) -> Shard:
    """Pad the stream at its end and keep one rank's piece of everything."""
    pad = -stream.ids_T.shape[0] % sp
    # Pad positions start over, so that the tail is one more row and no row attends to it.
    tail = torch.arange(pad, device=stream.positions_T.device)
    positions_TP = torch.cat((stream.positions_T, tail))
    return Shard(
        ids_L=cut(pad_to(stream.ids_T, sp, pad_id), sp, sp_index),
        positions_L=cut(positions_TP, sp, sp_index),
        labels_L=cut(pad_to(stream.labels_T, sp, pad_id), sp, sp_index),
        tokens_L=cut(pad_to(stream.tokens_T, sp, PAD_TOKEN), sp, sp_index),
        positions_TP=positions_TP,
        pad=pad,
    )
