"""xtuner's padding, cuts, exchanges and losses around our decoder.

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
    IGNORED,
    Part,
    eager,
    local_mean,
    seen_in_rows,
    token_losses,
    train,
    weighted,
)
from harness.candidates.published.wiring.gradients import total
from harness.candidates.published.wiring.packages import bare_packages, folder, lifted
from harness.candidates.published.wiring.rows import PADDING, Padded
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
        "Dict": dict,
        "Sequence": list,
        "torch": torch,
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
    """The exchange alone: the loss is added up, and so are the gradients."""
    use(rank)

    def forward_backward(model: Decoder, batch: Padded, say: Emit) -> Tensor:
        data, tokens_BS = collated(case, batch)
        data["labels"] = following(data["labels"])
        part = of_this_rank(data, tokens_BS, rank)
        nll = token_losses(model, part, attend(case, data), say)
        loss = weighted(case, nll, part.tokens)
        loss.backward()
        return loss.detach()

    train(
        *(case, rank, emit, forward_backward),
        mean=False,
        logged=lambda share: total(share, rank.world),
    )


def shifted(case: Case, rank: Rank, emit: Emit) -> None:
    """Labels that move up before they are cut, as its DPO and ORPO do it."""

    def loss(model: Decoder, data: Data, tokens_BS: Tensor, say: Emit) -> Tensor:
        data["labels"] = following(data["labels"])
        part = of_this_rank(data, tokens_BS, rank)
        nll = token_losses(model, part, attend(case, data), say)
        mean = local_mean(nll, part.labels)
        if case.sp == 1:
            return mean
        reduced: Tensor = reduce_sequence_parallel_loss(
            mean, (part.labels != IGNORED).sum(), rank.sp
        )
        return reduced

    averaged(case, rank, emit, loss)


def sft(case: Case, rank: Rank, emit: Emit) -> None:
    """`SupervisedFinetune`, whose model moves labels up by itself."""

    def loss(model: Decoder, data: Data, tokens_BS: Tensor, say: Emit) -> Tensor:
        look = attend(case, data)

        def llm(
            input_ids: Tensor, labels: Tensor, position_ids: Tensor, attention_mask: Tensor
        ) -> SimpleNamespace:
            del attention_mask
            tokens = split_for_sequence_parallel(tokens_BS, dim=1, sp_group=rank.sp)
            part = Part(input_ids, position_ids, following(labels), tokens)
            return SimpleNamespace(
                loss=local_mean(token_losses(model, part, look, say), part.labels)
            )

        found: Tensor = _Finetune(llm).compute_loss(data)["loss"]
        return found

    averaged(case, rank, emit, loss)


class _Finetune:
    """The part of `SupervisedFinetune` that a loss goes through."""

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
    """Micro-batches weigh the same, and gradients are averaged over all ranks, as DDP does."""
    use(rank)

    def forward_backward(model: Decoder, batch: Padded, say: Emit) -> Tensor:
        value = loss(model, *collated(case, batch), say) / case.micro_batches
        value.backward()
        return value.detach()

    train(
        *(case, rank, emit, forward_backward),
        mean=True,
        logged=lambda value: total(value, rank.world) / case.ranks,
    )


def use(rank: Rank) -> None:
    """The groups of `init_sequence_parallel`; heads are never cut inside them."""
    vars(setup_distributed).update(
        _SEQUENCE_PARALLEL_GROUP=rank.sp,
        _SEQUENCE_PARALLEL_WORLD_SIZE=None,
        _SEQUENCE_PARALLEL_RANK=None,
        _INNER_SEQUENCE_PARALLEL_GROUP=rank.sp,
        _INNER_SEQUENCE_PARALLEL_WORLD_SIZE=1,
    )


def collated(case: Case, batch: Padded) -> tuple[Data, Tensor]:
    """A table of rows, padded for the cut, and the numbers of its tokens."""
    rows = list(enumerate(batch.attended_BS.bool()))
    ids = [batch.ids_BS[row, real_S] for row, real_S in rows]
    labels = [
        batch.ids_BS[row, real_S].masked_fill(~batch.targets_BS[row, real_S], IGNORED)
        for row, real_S in rows
    ]
    tokens = [batch.tokens_BS[row, real_S] for row, real_S in rows]

    def table(ids: list[Tensor], pad: int) -> Data:
        instances = [
            {"input_ids": row.tolist(), "labels": target.tolist()}
            for row, target in zip(ids, labels, strict=True)
        ]
        found: Data = default_collate_fn(instances, pad_index=pad, return_hf_format=True)
        return found

    return table(ids, case.pad_id), table(tokens, PADDING)["input_ids"]


def following(labels_BS: Tensor) -> Tensor:
    """The label of each token's next one."""
    return torch.nn.functional.pad(labels_BS[:, 1:], (0, 1), value=IGNORED)


def of_this_rank(data: Data, tokens_BS: Tensor, rank: Rank) -> Part:
    whole = (data["input_ids"], data["position_ids"], data["labels"], tokens_BS)
    return Part(*(split_for_sequence_parallel(x, dim=1, sp_group=rank.sp) for x in whole))


def attend(case: Case, data: Data) -> Attend:
    """Heads are repeated first, as its patched attention does; the mask is that of whole rows."""
    real_BS = data["attention_mask"]
    places_BS = torch.arange(real_BS.shape[1]).expand_as(real_BS)
    seen_BSS = seen_in_rows(real_BS.long() - 1, places_BS, case.window)
    core = sequence_parallel_wrapper(lambda q, k, v: eager(q, k, v, seen_BSS))

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(case.heads // case.kv_heads, 2) for x in (k, v))
        out: Tensor = core(q, k, v)
        return out

    return repeated


STEPS: dict[str, Step] = {"attention": attention, "shifted": shifted, "sft": sft}
