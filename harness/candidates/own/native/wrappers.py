"""What training puts around a model: torch.compile, and DDP or FSDP, which hold its parameters.

DDP and FSDP reduce gradients during backward, and average over all ranks: to them, each is a
replica.
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
    """Whole parameters on every rank; the step reduces their gradients itself."""

    def wrap(self, model: Decoder, _case: Case, _rank: Rank) -> Decoder:
        return model

    def accumulation(self, _model: Any, _now: bool) -> AbstractContextManager[None]:
        """Around a micro-batch: gradients are reduced now, or wait for those of the next."""
        return nullcontext()

    def unwrapped(self, model: Decoder) -> Decoder:
        """The model that knows parameters by their names."""
        return model

    def whole(self, gradient: Tensor) -> Tensor:
        """The gradient, of which a rank may have no more than a piece."""
        return gradient


class Replicated(Bare):
    """DDP: whole parameters on every rank, and gradients averaged in buckets."""

    def wrap(self, model: Decoder, _case: Case, rank: Rank) -> Decoder:
        replicated = DistributedDataParallel(model, process_group=rank.world)
        if next(model.parameters()).itemsize < 4:
            replicated.register_comm_hook(rank.world, average_in_fp32)
        # Called like the model, and asked for its parameters.
        return cast("Decoder", replicated)

    def accumulation(self, model: Any, now: bool) -> AbstractContextManager[None]:
        return nullcontext() if now else cast("AbstractContextManager[None]", model.no_sync())

    def unwrapped(self, model: Decoder) -> Decoder:
        return cast("Decoder", model.module)


class Sharded(Bare):
    """FSDP2: a piece of every parameter on each rank, and gradients averaged as they are cut."""

    def wrap(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        # A second to import, in a process that may never need it.
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

    def accumulation(self, model: Any, now: bool) -> AbstractContextManager[None]:
        model.set_requires_gradient_sync(now)
        return nullcontext()

    def whole(self, gradient: Any) -> Tensor:
        """As `full_tensor`, in which gloo crashes if it is on a GPU: pytorch#152645."""
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
    """As DDP itself would, in half precision: but a sum must not depend on how many add to it."""
    short = bucket.buffer()
    wide = at_least_fp32(short) / group.size()
    under_way = dist.all_reduce(wide, group=group, async_op=True).get_future()
    averaged: Future[Tensor] = under_way.then(lambda done: short.copy_(done.value()[0]))
    return averaged


def compile_layers(model: Decoder, device: torch.device) -> None:
    """Compile what each layer does to tokens by themselves, for streams of any length.

    Collectives, and the taps that read what is between, stay outside of the graphs.
    """
    # torch gives up on a function after a few models of other shapes, and every case has its own.
    torch.compiler.reset()
    # Without an accelerator, inductor needs a C++ compiler and 17 seconds for its first kernel.
    # What it does before that, tracing and differentiating ahead of time, is the same here.
    backend = "aot_eager" if device.type == "cpu" else "inductor"
    for layer in model.layers:
        for part in ("project", "feed_forward"):
            # With `fullgraph` what is not compiled is an error, and not run as it is in silence.
            compiled = torch.compile(
                getattr(layer, part), fullgraph=True, dynamic=True, backend=backend
            )
            setattr(layer, part, compiled)
