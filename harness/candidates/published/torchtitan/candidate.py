"""torchtitan's context parallelism and loss around our decoder, as its trainer calls them."""

from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.library import Step
from harness.candidates.published.wiring import ring_on_cpu
from harness.candidates.published.wiring.decoder import IGNORED, right_padded, train
from harness.candidates.published.wiring.gradients import total
from harness.candidates.published.wiring.packages import bare_packages
from harness.candidates.published.wiring.rows import Padded, micro_batches
from harness.case import Case
from harness.reference.decoder import Decoder

ring_on_cpu.install()
# The package of its models imports kernels for experts, which need Triton.
bare_packages("torchtitan", "torchtitan.models", "torchtitan.models.common")

from torchtitan.components.loss import cross_entropy_loss  # noqa: E402
from torchtitan.distributed.context_parallel.api import (  # noqa: E402
    apply_cp_to_forward,
    cp_shard,
    prepare_context_parallel_input,
)
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402


def step(case: Case, rank: Rank, emit: Emit, *, balance: str | None) -> None:
    attention = ScaledDotProductAttention(ScaledDotProductAttention.Config())
    # A ring of one sends to itself, which gloo cannot do.
    mesh = DeviceMesh.from_group(rank.sp, rank.device.type) if case.sp > 1 else None
    if mesh is not None:
        apply_cp_to_forward([attention], mesh)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attention(q, k, v, enable_gqa=q.shape[2] > k.shape[2])
        return out

    valid = valid_tokens(case, rank)

    def forward_backward(model: Decoder, batch: Padded, say: Emit) -> Tensor:
        # torchtitan's data loader has shifted labels already.
        part = right_padded(batch, 2 * case.sp)
        inputs, labels, tokens = part.ids, part.labels, part.tokens
        more = {"positions": part.positions}
        if mesh is not None:
            inputs, labels, more = prepare_context_parallel_input(
                inputs, labels, more, mesh, rank.device, balance
            )
            ((tokens,), _) = cp_shard(mesh, (tokens,), None, balance)
        held = tokens.flatten()

        def tell(key: str, tensor: Tensor) -> None:
            say(key, tensor.flatten(0, 1), held)

        tell("ids", inputs)
        tell("positions", more["positions"])
        tell("labels", labels)
        logits = model(inputs, more["positions"], attend, tell)
        flat = logits.flatten(0, 1).float()
        nll = F.cross_entropy(flat, labels.flatten(), reduction="none", ignore_index=IGNORED)
        say("nll", nll, held)
        loss: Tensor = cross_entropy_loss(logits, labels) / valid
        loss.backward()
        return loss.detach()

    train(
        case,
        rank,
        emit,
        forward_backward,
        mean=False,
        logged=lambda share: total(share, rank.world),
    )


def valid_tokens(case: Case, rank: Rank) -> Tensor:
    """The targets of all micro-batches of all replicas, counted before the cut."""
    local = [(right_padded(x, 1).labels != IGNORED).sum() for x in micro_batches(case, rank)]
    valid = torch.stack(local).sum()
    dist.all_reduce(valid, group=rank.dp)
    return valid


STEPS: dict[str, Step] = {
    "headtail": partial(step, balance="headtail"),
    "unbalanced": partial(step, balance=None),
}
