"""Steps of our decoder with veomni's exchanges, collator and losses.

Legend: B one row, L tokens of this rank, S tokens of the stream, N heads, C kv heads, H head dim.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.library import Step
from harness.candidates.published.veomni.recipes import RECIPES
from harness.candidates.published.veomni.settings import SUPERVISED, TRAINING
from harness.candidates.published.wiring.decoder import (
    Part,
    local_mean,
    share_of_loss,
    token_losses,
    train,
    window_size,
)
from harness.candidates.published.wiring.packages import bare_packages
from harness.candidates.published.wiring.rows import (
    IGNORED,
    PADDING,
    Padded,
    micro_batches,
    shifted,
)
from harness.case import Case
from harness.case.settings import Settings
from harness.recipes import step as recipe_step
from harness.reference.decoder import Attend, Decoder

# Trainers need packages as they are, and not every release has these trainers.
with suppress(ImportError):
    import_module("harness.candidates.published.veomni.library")
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

# loss(this rank's token losses, its part, its collated batch) -> the tensor for backward.
Loss = Callable[[Tensor, Part, dict[str, Tensor]], Tensor]


def ulysses(case: Case, rank: Rank, emit: Emit) -> None:
    """Train with the library's mean over all micro-batches."""
    state = use(case)
    counts = [count_loss_token(collated(batch)) for batch in micro_batches(case, rank)]
    of_all = {"foundation_tokens": sum(count["foundation_tokens"] for count in counts)}

    def loss(nll: Tensor, part: Part, data: dict[str, Tensor]) -> Tensor:
        mean = local_mean(nll, part.labels)
        if state.sp_enabled:
            mean = reduce_sequence_parallel_loss(mean, (part.labels != IGNORED).sum())
        if case.loss == "micro-mean":
            return mean / case.micro_batches
        losses: dict[str, Tensor] = mean_global_loss(mean, count_loss_token(data), of_all)
        return losses["foundation_loss"]

    step(case, rank, emit, loss)


def gather(case: Case, rank: Rank, emit: Emit) -> None:
    """Train with losses that every rank gathers."""
    state = use(case)

    def loss(nll: Tensor, part: Part, data: dict[str, Tensor]) -> Tensor:  # noqa: ARG001
        tokens = part.tokens.flatten()
        if state.sp_enabled:
            nll = gather_outputs(nll, gather_dim=0, group=state.sp_group)
            tokens = gather_outputs(tokens, gather_dim=0, group=state.sp_group)
        # Every rank has the loss of its replica, of which the global loss is the mean.
        return share_of_loss(case, nll, tokens) * case.dp

    step(case, rank, emit, loss)


def step(case: Case, rank: Rank, emit: Emit, loss: Loss) -> None:
    """Train with gradients averaged over all ranks, as by FSDP; so is the logged loss."""

    def forward_backward(model: Decoder, batch: Padded, emit: Emit) -> Tensor:
        data = collated(batch)
        part = Part(*(data[key] for key in ("input_ids", "position_ids", "labels", "tokens")))
        if case.sp == 1:
            # Without sequence parallelism the collator does not shift labels.
            part = Part(part.ids, part.positions, shifted(part.labels), part.tokens)
        nll = token_losses(model, part, attention(case, data), emit)
        value = loss(nll, part, data)
        value.backward()
        return value.detach()

    train(case, rank, emit, forward_backward, mean=True)


def use(case: Case) -> parallel_state.ParallelState:
    """Use the library's own mesh over all ranks; the library keeps one for each shape."""
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
    """Return the rows as from its data loader: end to end, padded, cut and shifted."""
    features = [
        {
            "input_ids": row.ids_T,
            "attention_mask": torch.ones_like(row.ids_T),
            "labels": row.labels,
            "tokens": row.tokens_T,
        }
        for row in batch.rows
    ]
    collator = MainCollator({"tokens": DataCollateInfo(-1, True, PADDING, 1)})
    data: dict[str, Tensor] = collator(features)
    return data


def attention(case: Case, data: dict[str, Tensor]) -> Attend:
    """Return the two exchanges around a kernel, which gets the collator's ends of rows."""
    group, size = parallel_state.get_parallel_state().ulysses_group, case.sp

    def attend(q_BLNH: Tensor, k_BLCH: Tensor, v_BLCH: Tensor) -> Tensor:
        q, k, v = q_BLNH, k_BLCH, v_BLCH
        if group is not None:
            q, k, v, _ = prepare_ulysses_qkv(q, k, v, group=group, ulysses_size=size)
        out: Tensor = flash.flash_attn_varlen_func(
            q.squeeze(0),
            k.squeeze(0),
            v.squeeze(0),
            data["cu_seq_lens_q"],
            data["cu_seq_lens_k"],
            int(data["max_length_q"]),
            int(data["max_length_k"]),
            causal=True,
            window_size=window_size(case),
        ).unsqueeze(0)
        if group is not None:
            out = restore_ulysses_output(out, group=group)
        return out

    return attend


def dpo(*given: Any, **named: Any) -> Any:
    """Take a step of a trainer that not every release has."""
    from harness.candidates.published.veomni import preferences

    return preferences.dpo(*given, **named)


def supervised(*given: Any, **named: Any) -> Any:
    """Take a step of a trainer that not every release has."""
    from harness.candidates.published.veomni import supervised as trained

    return trained.supervised(*given, **named)


def taking(key: str, of: Callable[..., Any], settings: Settings) -> Step:
    """Return the step of an entry with a recipe, which gets its rows as micro-batches."""
    return recipe_step(RECIPES[key], micro_batches=True, settings=settings)(of).run


STEPS: dict[str, Step] = {
    "ulysses": ulysses,
    "gather": gather,
    "dpo": taking("dpo", dpo, TRAINING),
    "sft": taking("sft", supervised, SUPERVISED),
    "sft-balanced": taking("sft-balanced", partial(supervised, is_balanced=True), SUPERVISED),
}
