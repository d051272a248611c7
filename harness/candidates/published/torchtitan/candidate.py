"""Steps of our decoder with torchtitan's context parallelism and loss, as its trainer has them."""

from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.library import Step
from harness.candidates.published.wiring import ring_on_cpu
from harness.candidates.published.wiring.decoder import right_padded, train
from harness.candidates.published.wiring.packages import bare_packages
from harness.candidates.published.wiring.rows import IGNORED, Padded, micro_batches
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
    """Train on tables cut by the library, with its sum over valid tokens."""
    attention = ScaledDotProductAttention(ScaledDotProductAttention.Config())
    # A ring of one sends to itself, which gloo cannot do.
    mesh = DeviceMesh.from_group(rank.sp, rank.device.type) if case.sp > 1 else None
    if mesh is not None:
        apply_cp_to_forward([attention], mesh)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attention(q, k, v, enable_gqa=q.shape[2] > k.shape[2])
        return out

    valid = valid_tokens(case, rank)

    def forward_backward(model: Decoder, batch: Padded, emit: Emit) -> Tensor:
        # As from torchtitan's data loader, labels are shifted before the cut.
        part = right_padded(batch, 2 * case.sp)
        inputs, labels, tokens = part.ids, part.labels, part.tokens
        more = {"positions": part.positions}
        if mesh is not None:
            inputs, labels, more = prepare_context_parallel_input(
                inputs, labels, more, mesh, rank.device, balance
            )
            ((tokens,), _) = cp_shard(mesh, (tokens,), None, balance)
        own_tokens = tokens.flatten()

        def tap(key: str, tensor: Tensor) -> None:
            emit(key, tensor.flatten(0, 1), own_tokens)

        for key, tensor in (("ids", inputs), ("positions", more["positions"]), ("labels", labels)):
            tap(key, tensor)
        logits = model(inputs, more["positions"], attend, tap)
        flat = logits.flatten(0, 1).float()
        nll = F.cross_entropy(flat, labels.flatten(), reduction="none", ignore_index=IGNORED)
        emit("nll", nll, own_tokens)
        loss: Tensor = cross_entropy_loss(logits, labels) / valid
        loss.backward()
        return loss.detach()

    train(case, rank, emit, forward_backward)


def valid_tokens(case: Case, rank: Rank) -> Tensor:
    """Count the targets of all micro-batches of all replicas, before the cut."""
    counts = [(right_padded(x, 1).labels != IGNORED).sum() for x in micro_batches(case, rank)]
    valid = torch.stack(counts).sum()
    dist.all_reduce(valid, group=rank.dp)
    return valid


STEPS: dict[str, Step] = {
    "headtail": partial(step, balance="headtail"),
    "unbalanced": partial(step, balance=None),
}
