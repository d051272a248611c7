"""Steps of our decoder under torch's `context_parallel`, with both balances and rotations."""

from functools import partial

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.nn import functional as F

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.library import Step
from harness.candidates.published.wiring import ring_on_cpu
from harness.candidates.published.wiring.decoder import backward_of_share, right_padded, train
from harness.candidates.published.wiring.rows import Padded
from harness.case import Case
from harness.reference.decoder import Decoder

ring_on_cpu.install()


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Call torch's attention as any model does: rows, heads, tokens."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def step(case: Case, rank: Rank, emit: Emit, *, balanced: bool, rotation: str) -> None:
    """Train under `context_parallel`, which cuts the buffers of each micro-batch."""
    # A ring of one sends to itself, which gloo cannot do.
    mesh = DeviceMesh.from_group(rank.sp, rank.device.type) if case.sp > 1 else None
    ring._cp_options.enable_load_balance = balanced
    ring.set_rotate_method(rotation)

    def forward_backward(model: Decoder, batch: Padded, emit: Emit) -> Tensor:
        part = right_padded(batch, case.sp)
        if mesh is None:
            return backward_of_share(case, model, part, attend, emit)
        buffers = [part.ids, part.positions, part.labels, part.tokens]
        with context_parallel(
            mesh,
            buffers=buffers,
            buffer_seq_dims=[1] * len(buffers),
            no_restore_buffers=set(buffers),
        ):
            return backward_of_share(case, model, part, attend, emit)

    train(case, rank, emit, forward_backward)


STEPS: dict[str, Step] = {
    "balanced": partial(step, balanced=True, rotation="allgather"),
    "balanced-alltoall": partial(step, balanced=True, rotation="alltoall"),
    "unbalanced": partial(step, balanced=False, rotation="allgather"),
    "unbalanced-alltoall": partial(step, balanced=False, rotation="alltoall"),
}
