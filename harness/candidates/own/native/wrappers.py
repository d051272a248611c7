"""What training puts around a model: torch.compile, and DDP or FSDP, which hold its parameters.

DDP and FSDP reduce gradients during backward. They average over all ranks, because they take each
rank for a replica.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from harness.candidates.protocol import Rank
from harness.case import Case
from harness.reference.decoder import Decoder, at_least_fp32
from harness.reference.weights import TORCH_DTYPES


class Bare:
    """No wrapper: every rank has whole parameters, and the step reduces their gradients."""

    def wrap(self, model: Decoder, _case: Case, _rank: Rank) -> Decoder:
        """Return the model as the step calls it."""
        return model

    def gradient_sync(self, _model: Any, _now: bool) -> AbstractContextManager[None]:
        """Return a context for a micro-batch, which reduces gradients now or later."""
        return nullcontext()

    def unwrap(self, model: Decoder) -> Decoder:
        """Return the model whose parameters have their own names."""
        return model

    def whole_gradient(self, gradient: Tensor) -> Tensor:
        """Gather the gradient if each rank has only a piece of it."""
        return gradient


class Replicated(Bare):
    """DDP: every rank has whole parameters, and gradients are averaged in buckets."""

    def wrap(self, model: Decoder, _case: Case, rank: Rank) -> Decoder:
        replicated = DistributedDataParallel(model, process_group=rank.world)
        if next(model.parameters()).itemsize < 4:
            replicated.register_comm_hook(rank.world, average_in_fp32)
        # The step only calls it like the model and reads its parameters.
        return cast("Decoder", replicated)

    def gradient_sync(self, model: Any, now: bool) -> AbstractContextManager[None]:
        return nullcontext() if now else cast("AbstractContextManager[None]", model.no_sync())

    def unwrap(self, model: Decoder) -> Decoder:
        return cast("Decoder", model.module)


class Sharded(Bare):
    """FSDP2: each rank has a piece of every parameter, and of every averaged gradient."""

    def wrap(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        # These imports take a second, and many processes never need them.
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        dtype = TORCH_DTYPES[case.dtype]
        policy = MixedPrecisionPolicy(
            param_dtype=dtype if case.mixed else None,
            reduce_dtype=torch.promote_types(dtype, torch.float32),
        )
        mesh = DeviceMesh.from_group(rank.world, rank.device.type)
        for module in (*model.layers, model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        return model

    def gradient_sync(self, model: Any, now: bool) -> AbstractContextManager[None]:
        model.set_requires_gradient_sync(now)
        return nullcontext()

    def whole_gradient(self, gradient: Any) -> Tensor:
        """Do what `full_tensor` does, which crashes with gloo on a GPU: pytorch#152645."""
        group, piece = gradient.device_mesh.get_group(), gradient.to_local()
        # The last ranks may have fewer rows than the others, or none.
        most = -(-len(gradient) // group.size())
        padded = piece.new_zeros(most, *gradient.shape[1:])
        padded[: len(piece)] = piece
        gathered: Tensor = piece.new_empty(group.size() * padded.numel())
        dist.all_gather_into_tensor(gathered, padded.flatten(), group=group)
        return gathered.view(-1, *gradient.shape[1:])[: len(gradient)]


WRAPPERS = {"none": Bare(), "ddp": Replicated(), "fsdp": Sharded()}


def average_in_fp32(
    group: ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[Tensor]:
    """Average a bucket of half-precision gradients as DDP does, but in fp32.

    So the result does not depend on the number of ranks.
    """
    short = bucket.buffer()
    wide = at_least_fp32(short) / group.size()
    reduction = dist.all_reduce(wide, group=group, async_op=True).get_future()
    averaged: Future[Tensor] = reduction.then(lambda done: short.copy_(done.value()[0]))
    return averaged


def compile_layers(model: Decoder, device: torch.device) -> None:
    """Compile the parts of each layer in which no token sees another, for streams of any length.

    Collectives, and the taps between these parts, stay outside of the graphs.
    """
    # Each case has its own shapes, and after a few of them torch stops compiling a function.
    torch.compiler.reset()
    # On a CPU, inductor needs a C++ compiler and 17 seconds for its first kernel. `aot_eager`
    # traces and differentiates in the same way, without the kernel.
    backend = "aot_eager" if device.type == "cpu" else "inductor"
    for layer in model.layers:
        for part in ("project", "feed_forward"):
            # Without `fullgraph`, torch silently runs uncompiled what it cannot compile.
            compiled = torch.compile(
                getattr(layer, part), fullgraph=True, dynamic=True, backend=backend
            )
            setattr(layer, part, compiled)
