"""Steps of our decoder with xtuner's padding, cuts, exchanges and losses.

Legend: B rows, S longest row with padding, L tokens of a row on this rank.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.library import Step
from harness.candidates.published.wiring.decoder import (
    Part,
    eager,
    local_mean,
    seen_in_rows,
    token_losses,
    train,
    train_shares,
)
from harness.candidates.published.wiring.packages import bare_packages, folder, lifted
from harness.candidates.published.wiring.rows import IGNORED, PADDING, Padded, shifted
from harness.case import Case
from harness.reference.decoder import Attend, Decoder

bare_packages("xtuner", "xtuner.parallel", "xtuner.parallel.sequence")

from xtuner.parallel.sequence import setup_distributed  # noqa: E402
from xtuner.parallel.sequence.attention import sequence_parallel_wrapper  # noqa: E402
from xtuner.parallel.sequence.comm import split_for_sequence_parallel  # noqa: E402
from xtuner.parallel.sequence.data_collate import pad_for_sequence_parallel  # noqa: E402
from xtuner.parallel.sequence.reduce_loss import reduce_sequence_parallel_loss  # noqa: E402

Data = dict[str, Tensor]

default_collate_fn = lifted(
    folder("xtuner.dataset") / "collate_fns" / "default_collate_fn.py",
    "default_collate_fn",
    {
        "Sequence": list,
        "pad_sequence": pad_sequence,
        "DEFAULT_PAD_TOKEN_INDEX": 0,
        "IGNORE_INDEX": IGNORED,
        "get_sequence_parallel_world_size": setup_distributed.get_sequence_parallel_world_size,
        "pad_for_sequence_parallel": pad_for_sequence_parallel,
    },
)

_GIVEN = {
    "get_sequence_parallel_group": setup_distributed.get_sequence_parallel_group,
    "get_sequence_parallel_world_size": setup_distributed.get_sequence_parallel_world_size,
    "split_for_sequence_parallel": split_for_sequence_parallel,
    "reduce_sequence_parallel_loss": reduce_sequence_parallel_loss,
}
SFT = {
    name: lifted(folder("xtuner.model") / "sft.py", f"SupervisedFinetune.{name}", _GIVEN)
    for name in ("_split_for_sequence_parallel", "_compute_sequence_parallel_loss", "compute_loss")
}


def attention(case: Case, rank: Rank, emit: Emit) -> None:
    """Train with only the exchange of the library; shares of the loss are summed."""
    use(rank)

    def layout(batch: Padded) -> tuple[Part, Attend]:
        data, tokens_BS = collated(case, batch)
        data["labels"] = shifted(data["labels"])
        return of_this_rank(data, tokens_BS, rank), attend(case, data)

    train_shares(case, rank, emit, layout)


def shifted_first(case: Case, rank: Rank, emit: Emit) -> None:
    """Train with labels that are shifted before they are cut, as its DPO and ORPO do it."""

    def loss(model: Decoder, data: Data, tokens_BS: Tensor, emit: Emit) -> Tensor:
        data["labels"] = shifted(data["labels"])
        part = of_this_rank(data, tokens_BS, rank)
        nll = token_losses(model, part, attend(case, data), emit)
        mean = local_mean(nll, part.labels)
        if case.sp == 1:
            return mean
        reduced: Tensor = reduce_sequence_parallel_loss(
            mean, (part.labels != IGNORED).sum(), rank.sp
        )
        return reduced

    averaged(case, rank, emit, loss)


def sft(case: Case, rank: Rank, emit: Emit) -> None:
    """Train with `SupervisedFinetune`, whose model itself shifts labels."""

    def loss(model: Decoder, data: Data, tokens_BS: Tensor, emit: Emit) -> Tensor:
        attend_in_rows = attend(case, data)

        def llm(
            input_ids: Tensor, labels: Tensor, position_ids: Tensor, attention_mask: Tensor
        ) -> SimpleNamespace:
            del attention_mask
            tokens = split_for_sequence_parallel(tokens_BS, dim=1, sp_group=rank.sp)
            part = Part(input_ids, position_ids, shifted(labels), tokens)
            nll = token_losses(model, part, attend_in_rows, emit)
            return SimpleNamespace(loss=local_mean(nll, part.labels))

        value: Tensor = _Finetune(llm).compute_loss(data)["loss"]
        return value

    averaged(case, rank, emit, loss)


class _Finetune:
    """The part of `SupervisedFinetune` that computes a loss."""

    _split_for_sequence_parallel = SFT["_split_for_sequence_parallel"]
    _compute_sequence_parallel_loss = SFT["_compute_sequence_parallel_loss"]
    compute_loss = SFT["compute_loss"]

    def __init__(self, llm: Callable[..., Any]) -> None:
        self.llm = llm


def averaged(
    case: Case,
    rank: Rank,
    emit: Emit,
    loss: Callable[[Decoder, Data, Tensor, Emit], Tensor],
) -> None:
    """Train with micro-batches that weigh the same, and gradients averaged as by DDP."""
    use(rank)

    def forward_backward(model: Decoder, batch: Padded, emit: Emit) -> Tensor:
        value = loss(model, *collated(case, batch), emit) / case.micro_batches
        value.backward()
        return value.detach()

    train(case, rank, emit, forward_backward, mean=True)


def use(rank: Rank) -> None:
    """Use the groups of a case as `init_sequence_parallel` would; the inner group has one rank."""
    vars(setup_distributed).update(
        _SEQUENCE_PARALLEL_GROUP=rank.sp,
        _SEQUENCE_PARALLEL_WORLD_SIZE=None,
        _SEQUENCE_PARALLEL_RANK=None,
        _INNER_SEQUENCE_PARALLEL_GROUP=rank.sp,
        _INNER_SEQUENCE_PARALLEL_WORLD_SIZE=1,
    )


def collated(case: Case, batch: Padded) -> tuple[Data, Tensor]:
    """Return a table of rows, padded for the cut, and the numbers of its tokens."""

    def table(ids: list[Tensor], pad: int) -> Data:
        instances = [
            {"input_ids": row_ids.tolist(), "labels": row.labels.tolist()}
            for row_ids, row in zip(ids, batch.rows, strict=True)
        ]
        data: Data = default_collate_fn(instances, pad_index=pad, return_hf_format=True)
        return data

    data = table([row.ids_T for row in batch.rows], case.pad_id)
    return data, table([row.tokens_T for row in batch.rows], PADDING)["input_ids"]


def of_this_rank(data: Data, tokens_BS: Tensor, rank: Rank) -> Part:
    """Return this rank's part of a table."""
    whole = (data["input_ids"], data["position_ids"], data["labels"], tokens_BS)
    return Part(*(split_for_sequence_parallel(x, dim=1, sp_group=rank.sp) for x in whole))


def attend(case: Case, data: Data) -> Attend:
    """Return the exchange around an eager core, after repeating heads as its patched attention."""
    real_BS = data["attention_mask"]
    positions_BS = torch.arange(real_BS.shape[1]).expand_as(real_BS)
    seen_BSS = seen_in_rows(real_BS.long() - 1, positions_BS, case.window)
    core = sequence_parallel_wrapper(lambda q, k, v: eager(q, k, v, seen_BSS))

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(case.heads // case.kv_heads, 2) for x in (k, v))
        out: Tensor = core(q, k, v)
        return out

    return repeated


STEPS: dict[str, Step] = {"attention": attention, "shifted": shifted_first, "sft": sft}
