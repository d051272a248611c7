"""`DistributedAttention` around the attention of the harness's own model.

Legend: B rows, S tokens of all ranks, s tokens of one, N heads, C kv heads, H head dim.
"""

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
    """Tables of rows, cut along the sequence; `more` kv heads make the heads uneven."""
    start()
    # Releases before 0.19 keep one model's number of kv heads for all models that follow.
    if hasattr(tp_shard, "set_num_kv_heads"):
        tp_shard.set_num_kv_heads(None)
    # Code that splits heads unevenly asks for its rank here.
    mpu = SimpleNamespace(get_sequence_parallel_rank=rank.sp.rank)
    with patch.object(groups, "mpu", mpu):

        def forward_backward(model: Decoder, batch: Padded, say: Emit) -> Tensor:
            whole = decoder.right_padded(batch, case.sp)
            size = whole.ids.shape[1] // case.sp
            mine = slice(rank.sp_index * size, (rank.sp_index + 1) * size)
            part = decoder.Part(*(turned(getattr(whole, key)[:, mine], batch_dim) for key in KEYS))
            attend = attending(case, rank, whole, batch_dim, more)
            if own_loss:
                return gathered(model, part, attend, case, rank, say)
            nll = decoder.token_losses(model, part, attend, say)
            loss = decoder.weighted(case, nll, part.tokens)
            loss.backward()
            return loss.detach()

        decoder.train(
            case,
            rank,
            emit,
            forward_backward,
            mean=False,
            # DeepSpeed's own loss is that of the whole sequence, on each of its ranks.
            logged=lambda loss: gradients.total(loss / (case.sp if own_loss else 1), rank.world),
        )


KEYS = ("ids", "positions", "labels", "tokens")


def turned(x_Bs: Tensor, batch_dim: int) -> Tensor:
    """The table, with the sequence first where rows are dim 1."""
    return x_Bs if batch_dim == 0 else x_Bs.T.contiguous()


def attending(case: Case, rank: Rank, whole: decoder.Part, batch_dim: int, more: int) -> Attend:
    """The library's attention: one rank's queries, keys and values -> its outputs."""
    place_BS = torch.arange(whole.ids.shape[1], device=rank.device).expand(whole.ids.shape)
    row_BS = torch.arange(len(whole.ids), device=rank.device)[:, None].expand(whole.ids.shape)
    row_BS = row_BS.masked_fill(whole.tokens < 0, -1)
    seen_BSS = decoder.seen_in_rows(row_BS, place_BS, case.window)

    def local(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention that the library calls with all tokens and some heads."""
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
    """The tensor with so many heads more, whose output is dropped."""
    return torch.cat((x, x[:, :, :more]), 2) if more else x


def gathered(
    model: Decoder, part: decoder.Part, attend: Attend, case: Case, rank: Rank, emit: Emit
) -> Tensor:
    """As Megatron-DeepSpeed trains: every rank has all losses, and averages them alike."""
    tokens = part.tokens.flatten()

    def tell(key: str, tensor: Tensor) -> None:
        emit(key, tensor.flatten(0, 1), tokens)

    logits_sBV = model(part.ids, part.positions, attend, tell)
    # The library's loss knows no ignored label before 0.19; `weighted` masks what is not learnt.
    labels_sB = part.labels.clamp(min=0)
    nll_SB = vocab_sequence_parallel_cross_entropy(logits_sBV, labels_sB, rank.sp)
    size = len(part.ids)
    emit("nll", nll_SB[rank.sp_index * size :][:size].flatten(), tokens)
    pieces = [torch.empty_like(part.tokens) for _ in range(case.sp)]
    torch.distributed.all_gather(pieces, part.tokens, group=rank.sp)
    loss = decoder.weighted(case, nll_SB.flatten(), torch.cat(pieces))
    loss.backward()
    return loss.detach()
