"""Steps with `DistributedAttention` around the attention of the harness's own model.

Legend: B rows, S tokens of all ranks, s tokens of one, N heads, C kv heads, H head dim.
"""

from dataclasses import fields
from types import SimpleNamespace
from unittest.mock import patch

import torch
from deepspeed.module_inject import tp_shard
from deepspeed.sequence.cross_entropy import vocab_sequence_parallel_cross_entropy
from deepspeed.sequence.layer import DistributedAttention
from deepspeed.utils import groups
from torch import Tensor

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.deepspeed.world import start
from harness.candidates.published.wiring import decoder, gradients
from harness.candidates.published.wiring.rows import Padded
from harness.case import Case
from harness.reference.decoder import Attend, Decoder


def step(
    case: Case, rank: Rank, emit: Emit, *, batch_dim: int, more: int = 0, own_loss: bool = False
) -> None:
    """Train on tables cut along the sequence; `more` kv heads make the heads uneven."""
    start()
    # Releases before 0.19 keep one model's number of kv heads for all models that follow.
    if hasattr(tp_shard, "set_num_kv_heads"):
        tp_shard.set_num_kv_heads(None)
    # Code that splits heads unevenly asks for its rank here.
    mpu = SimpleNamespace(get_sequence_parallel_rank=rank.sp.rank)
    with patch.object(groups, "mpu", mpu):

        def forward_backward(model: Decoder, batch: Padded, emit: Emit) -> Tensor:
            whole = decoder.right_padded(batch, case.sp)
            size = whole.ids.shape[1] // case.sp
            own = slice(rank.sp_index * size, (rank.sp_index + 1) * size)
            columns = (getattr(whole, field.name) for field in fields(whole))
            part = decoder.Part(*(turned(x_BS[:, own], batch_dim) for x_BS in columns))
            attend = attention(case, rank, whole, batch_dim, more)
            if own_loss:
                return backward_of_own_loss(model, part, attend, case, rank, emit)
            return decoder.backward_of_share(case, model, part, attend, emit)

        decoder.train(
            case,
            rank,
            emit,
            forward_backward,
            # DeepSpeed's own loss is that of the whole sequence, on each of its ranks.
            logged=lambda loss: gradients.total(loss / (case.sp if own_loss else 1), rank.world),
        )


def turned(x_Bs: Tensor, batch_dim: int) -> Tensor:
    """Return the table, with the sequence first if rows are dimension 1."""
    return x_Bs if batch_dim == 0 else x_Bs.T.contiguous()


def attention(case: Case, rank: Rank, whole: decoder.Part, batch_dim: int, more: int) -> Attend:
    """Return the library's attention, from one rank's queries, keys and values to its outputs."""
    position_BS = torch.arange(whole.ids.shape[1], device=rank.device).expand(whole.ids.shape)
    row_BS = torch.arange(len(whole.ids), device=rank.device)[:, None].expand(whole.ids.shape)
    row_BS = row_BS.masked_fill(whole.tokens < 0, -1)
    seen_BSS = decoder.seen_in_rows(row_BS, position_BS, case.window)

    def local(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend as the library asks: with all tokens and some heads."""
        if batch_dim == 1:
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        out = decoder.eager(q, k, v, seen_BSS)
        return out.transpose(0, 1).contiguous() if batch_dim == 1 else out

    distributed = DistributedAttention(local, rank.sp, scatter_idx=2, gather_idx=1 - batch_dim)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = case.heads // case.kv_heads
        out: Tensor = distributed(
            widened(q, more * group), widened(k, more), widened(v, more), batch_dim
        )
        return out[:, :, : case.heads]

    return attend


def widened(x: Tensor, more: int) -> Tensor:
    """Return the tensor with so many more heads, whose output is dropped."""
    return torch.cat((x, x[:, :, :more]), 2) if more else x


def backward_of_own_loss(
    model: Decoder, part: decoder.Part, attend: Attend, case: Case, rank: Rank, emit: Emit
) -> Tensor:
    """Train as Megatron-DeepSpeed: every rank has all losses, and averages them alike."""
    tokens = part.tokens.flatten()

    def tap(key: str, tensor: Tensor) -> None:
        emit(key, tensor.flatten(0, 1), tokens)

    logits_sBV = model(part.ids, part.positions, attend, tap)
    # Before 0.19 the library's loss knows no ignored label; `share_of_loss` masks these.
    labels_sB = part.labels.clamp(min=0)
    nll_SB = vocab_sequence_parallel_cross_entropy(logits_sBV, labels_sB, rank.sp)
    size = len(part.ids)
    emit("nll", nll_SB[rank.sp_index * size :][:size].flatten(), tokens)
    pieces = [torch.empty_like(part.tokens) for _ in range(case.sp)]
    torch.distributed.all_gather(pieces, part.tokens, group=rank.sp)
    loss = decoder.share_of_loss(case, nll_SB.flatten(), torch.cat(pieces))
    loss.backward()
    return loss.detach()
