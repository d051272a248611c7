"""veomni's exchanges, collator and losses around our decoder.

Legend: B one row, L tokens on this rank, S tokens of the stream, N heads, C kv heads, H head dim.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.wiring.decoder import (
    IGNORED,
    Part,
    local_mean,
    token_losses,
    train,
)
from harness.candidates.published.wiring.decoder import weighted as share
from harness.candidates.published.wiring.packages import bare_packages
from harness.candidates.published.wiring.rows import PADDING, Padded, micro_batches
from harness.case import Case
from harness.reference.decoder import Attend, Decoder

bare_packages(
    "veomni",
    "veomni.data",
    "veomni.distributed",
    "veomni.ops",
    "veomni.ops.kernels",
    "veomni.ops.kernels.attention",
    "veomni.utils",
)

from veomni.data.data_collator import DataCollateInfo, MainCollator  # noqa: E402
from veomni.distributed import parallel_state  # noqa: E402
from veomni.distributed.sequence_parallel import (  # noqa: E402
    gather_outputs,
    reduce_sequence_parallel_loss,
)
from veomni.utils.loss_utils import count_loss_token, mean_global_loss  # noqa: E402

try:
    from veomni.distributed.parallel_state import init_parallel_state, set_parallel_state
    from veomni.ops.kernels.attention.ulysses import prepare_ulysses_qkv, restore_ulysses_output
except ImportError:
    from harness.candidates.published.veomni.older import (
        init_parallel_state,
        prepare_ulysses_qkv,
        restore_ulysses_output,
    )

    set_parallel_state = None

# loss(this rank's token losses, its part, its collated batch) -> what it calls backward on.
Loss = Callable[[Tensor, Part, dict[str, Tensor]], Tensor]


def ulysses(case: Case, rank: Rank, emit: Emit) -> None:
    state = use(case)
    counted = [count_loss_token(collated(batch)) for batch in micro_batches(case, rank)]
    everything = {"foundation_tokens": sum(each["foundation_tokens"] for each in counted)}

    def loss(nll: Tensor, part: Part, collate: dict[str, Tensor]) -> Tensor:
        mean = local_mean(nll, part.labels)
        if state.sp_enabled:
            mean = reduce_sequence_parallel_loss(mean, (part.labels != IGNORED).sum())
        if case.loss == "micro-mean":
            return mean / case.micro_batches
        whole: Tensor = mean_global_loss(mean, count_loss_token(collate), everything)[
            "foundation_loss"
        ]
        return whole

    step(case, rank, emit, loss)


def gather(case: Case, rank: Rank, emit: Emit) -> None:
    state = use(case)

    def loss(nll: Tensor, part: Part, collate: dict[str, Tensor]) -> Tensor:  # noqa: ARG001
        tokens = part.tokens.flatten()
        if state.sp_enabled:
            nll = gather_outputs(nll, gather_dim=0, group=state.sp_group)
            tokens = gather_outputs(tokens, gather_dim=0, group=state.sp_group)
        # Every rank has the loss of its replica, of which the global loss is the mean.
        return share(case, nll, tokens) * case.dp

    step(case, rank, emit, loss)


def step(case: Case, rank: Rank, emit: Emit, loss: Loss) -> None:
    """Gradients are averaged over all ranks, as FSDP does; so is what is logged."""

    def forward_backward(model: Decoder, batch: Padded, say: Emit) -> Tensor:
        collate = collated(batch)
        part = Part(*(collate[key] for key in ("input_ids", "position_ids", "labels", "tokens")))
        if case.sp == 1:
            part = Part(part.ids, part.positions, next_of(part.labels), part.tokens)
        nll = token_losses(model, part, attention(case, collate), say)
        value = loss(nll, part, collate)
        value.backward()
        return value.detach()

    def logged(value: Tensor) -> Tensor:
        dist.all_reduce(value, group=rank.world)
        return value / case.ranks

    train(case, rank, emit, forward_backward, mean=True, logged=logged)


def use(case: Case) -> parallel_state.ParallelState:
    """The library's own mesh over all ranks; the library keeps one for each shape."""
    state = init_parallel_state(
        dp_size=case.dp,
        dp_shard_size=case.dp,
        ulysses_size=case.sp,
        device_type="cpu",
        name=None,
    )
    if set_parallel_state is not None:
        set_parallel_state(state)
    return state


def collated(batch: Padded) -> dict[str, Tensor]:
    """The rows as its data loader hands them to a model: end to end, padded, cut, shifted."""
    features = []
    for row, real_S in enumerate(batch.attended_BS.bool()):
        ids = batch.ids_BS[row, real_S]
        features.append(
            {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "labels": ids.masked_fill(~batch.targets_BS[row, real_S], IGNORED),
                "tokens": batch.tokens_BS[row, real_S],
            }
        )
    collator = MainCollator({"tokens": DataCollateInfo(-1, True, PADDING, 1)})
    found: dict[str, Tensor] = collator(features)
    return found


def next_of(labels_BS: Tensor) -> Tensor:
    """Labels moved up by one: without sequence parallelism the collator does not shift them."""
    return torch.nn.functional.pad(labels_BS, (0, 1), value=IGNORED)[:, 1:]


def attention(case: Case, collate: dict[str, Tensor]) -> Attend:
    """Between its two exchanges, the kernel gets the ends of rows that the collator found."""
    group, size = parallel_state.get_parallel_state().ulysses_group, case.sp
    window = (-1, -1) if case.window is None else (case.window - 1, 0)

    def attend(q_BLNH: Tensor, k_BLCH: Tensor, v_BLCH: Tensor) -> Tensor:
        q, k, v = q_BLNH, k_BLCH, v_BLCH
        if group is not None:
            q, k, v, _ = prepare_ulysses_qkv(q, k, v, group=group, ulysses_size=size)
        out: Tensor = flash.flash_attn_varlen_func(
            q.squeeze(0),
            k.squeeze(0),
            v.squeeze(0),
            collate["cu_seq_lens_q"],
            collate["cu_seq_lens_k"],
            int(collate["max_length_q"]),
            int(collate["max_length_k"]),
            causal=True,
            window_size=window,
        ).unsqueeze(0)
        if group is not None:
            out = restore_ulysses_output(out, group=group)
        return out

    return attend


STEPS: dict[str, Step] = {"ulysses": ulysses, "gather": gather}
