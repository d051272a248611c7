"""One right step in each of the styles in which people write them, with nothing but the decorator.

Legend: B rows, S columns, L columns of this rank, N heads, H head dim, V vocabulary.
"""

from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from harness.candidates.published.wiring import ring_on_cpu
from harness.recipes import Recipe, Step, step
from harness.recipes.batch import IGNORED, Batch
from properties.planted.collectives import Gathered
from properties.planted.tiny import Attention, Tiny, WithAdapters, causal, loss, next_labels

RECIPE = Recipe(Tiny, loss)
# torch's ring has no kernel for a CPU.
ring_on_cpu.install()
# What is wrong with a step, for those that take what they hold from `held`.
FAULT: ContextVar[str] = ContextVar("FAULT", default="")


def padded(batch: Batch, pieces: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ids, positions, labels and mask, padded so that they can be cut into equal pieces."""
    pad = -batch["input_ids"].shape[1] % pieces
    labels_BS = F.pad(next_labels(batch), (0, pad), value=IGNORED)
    ids_BS, positions_BS, real_BS = (
        F.pad(batch[name], (0, pad)) for name in ("input_ids", "position_ids", "attention_mask")
    )
    return ids_BS, positions_BS, labels_BS, real_BS.bool()


def held(batch: Batch, pieces: int, mine_L: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ids, positions and labels of these columns, and the mask of whole rows."""
    ids_BS, positions_BS, labels_BS, real_BS = padded(batch, pieces)
    ids_BL, positions_BL, labels_BL = (x[:, mine_L] for x in (ids_BS, positions_BS, labels_BS))
    if FAULT.get() == "labels_lost":
        own_BS = F.pad(batch["labels"], (0, labels_BS.shape[1]), value=IGNORED)
        labels_BL = F.pad(own_BS[:, mine_L[1:]], (0, 1), value=IGNORED)
    if FAULT.get() == "positions_restarted":
        positions_BL = torch.arange(ids_BL.shape[1], device=ids_BL.device).expand_as(ids_BL)
    return ids_BL, positions_BL, labels_BL, real_BS


def cut(batch: Batch, group: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return this rank's ids, positions and labels, and the mask of whole rows."""
    n = group.size()
    return held(batch, n, columns_of(batch, n).chunk(n)[group.rank()])


def columns_of(batch: Batch, pieces: int) -> Tensor:
    """Return the columns of a batch that is padded to so many equal pieces."""
    width = batch["input_ids"].shape[1]
    return torch.arange(width + -width % pieces, device=batch["input_ids"].device)


def total(logits_BLV: Tensor, labels_BL: Tensor) -> Tensor:
    logits, labels = logits_BLV.flatten(0, 1), labels_BL.flatten()
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


def summed(x: Tensor) -> Tensor:
    x = x.detach().clone()
    dist.all_reduce(x)
    return x


def all_ranks() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def sum_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def use(model: nn.Module, attend: Any) -> None:
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = attend


def gathering(group: Any) -> Any:
    """Attention of this rank's queries over the keys of all."""

    def attend(q: Tensor, k: Tensor, v: Tensor, real_BS: Tensor) -> Tensor:
        k, v = (Gathered.apply(x, 2, group) for x in (k, v))  # type: ignore[no-untyped-call]
        return causal(q, k, v, real_BS, group.rank() * q.shape[2])

    return attend


def shard_loss(model: Any, batch: Batch, group: Any) -> tuple[Tensor, Tensor]:
    """Return the sum of this rank's losses, and the number of all targets."""
    ids_BL, positions_BL, labels_BL, real_BS = cut(batch, group)
    logits_BLV = model(ids_BL, positions_BL, real_BS)
    return total(logits_BLV, labels_BL), summed((labels_BL != IGNORED).sum()).clamp(min=1)


@step(RECIPE)
def plain_loop(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Backward by hand, and a sum over all ranks."""
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    share, count = shard_loss(model, batch, group)
    (share / count).backward()
    sum_gradients(model)
    return summed(share / count)


@step(RECIPE)
def with_ddp(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """DDP averages gradients over all ranks, so the loss is multiplied by their number."""
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    replica = DistributedDataParallel(model, process_group=all_ranks())
    share, count = shard_loss(replica, batch, group)
    (share / count * dist.get_world_size()).backward()
    return summed(share / count)


@step(RECIPE)
def with_accelerate(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """As with DDP, in which accelerate wraps the model."""
    # Other styles need no accelerate.
    from accelerate import Accelerator

    group = mesh["sp"].get_group()
    use(model, gathering(group))
    accelerator = Accelerator(cpu=mesh.device_type == "cpu")
    replica = accelerator.prepare(model)
    share, count = shard_loss(replica, batch, group)
    accelerator.backward(share / count * accelerator.num_processes)
    return summed(share / count)


@step(RECIPE)
def with_fsdp(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """FSDP2 over both axes; it averages gradients as DDP does."""
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    everywhere = DeviceMesh.from_group(all_ranks(), mesh.device_type)
    for block in model.blocks:
        fully_shard(block, mesh=everywhere)
    fully_shard(model, mesh=everywhere)
    share, count = shard_loss(model, batch, group)
    (share / count * dist.get_world_size()).backward()
    return summed(share / count)


@step(RECIPE)
def with_functional_collectives(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Ulysses: heads for columns and back, by functional collectives."""
    group = mesh["sp"].get_group()

    def exchange(x: Tensor, scatter: int, gather: int) -> Tensor:
        pieces = torch.cat(x.chunk(group.size(), scatter), 0).contiguous()
        moved: Tensor = functional.all_to_all_single_autograd(pieces, None, None, group)
        return torch.cat(moved.chunk(group.size(), 0), gather)

    def attend(q: Tensor, k: Tensor, v: Tensor, real_BS: Tensor) -> Tensor:
        q, k, v = (exchange(x, 1, 2) for x in (q, k, v))
        return exchange(causal(q, k, v, real_BS), 2, 1)

    use(model, attend)
    share, count = shard_loss(model, batch, group)
    (share / count).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            grad = functional.all_reduce(parameter.grad, "sum", all_ranks())
            parameter.grad = functional.wait_tensor(grad)
    return summed(share / count)


@step(RECIPE)
def with_dtensors(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Keys and values are DTensors in shards, and are replicated for attention."""
    axis = mesh["sp"]

    def whole(x: Tensor) -> Tensor:
        held = DTensor.from_local(x.contiguous(), axis, [Shard(2)])
        spread: Tensor = held.redistribute(axis, [Replicate()]).to_local(
            grad_placements=[Partial()]
        )
        return spread

    def attend(q: Tensor, k: Tensor, v: Tensor, real_BS: Tensor) -> Tensor:
        return causal(q, whole(k), whole(v), real_BS, axis.get_local_rank() * q.shape[2])

    use(model, attend)
    share, count = shard_loss(model, batch, axis.get_group())
    (share / count).backward()
    sum_gradients(model)
    return summed(share / count)


class Passed(torch.autograd.Function):
    """What the previous rank of the ring holds; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return passed(x, group, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return passed(grads[0], ctx.group, -1), None


def passed(x: Tensor, group: Any, by: int) -> Tensor:
    """Send a tensor `by` ranks on, and return the one that arrives."""
    x, received = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    n, r = group.size(), group.rank()
    to, source = (dist.get_global_rank(group, (r + step) % n) for step in (by, -by))
    sent = dist.P2POp(dist.isend, x, to, group)
    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, source, group)]):
        work.wait()
    return received


@step(RECIPE)
def ring_with_zigzag(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Rank r holds chunks r and 2n - 1 - r, and keys go around."""
    group = mesh["sp"].get_group()
    n, r = group.size(), group.rank()
    chunks = columns_of(batch, 2 * n).chunk(2 * n)
    places = [torch.cat((chunks[rank], chunks[-1 - rank])) for rank in range(n)]
    mine_L = places[r]

    def attend(q: Tensor, k: Tensor, v: Tensor, real_BS: Tensor) -> Tensor:
        keys, values = [k], [v]
        for _ in range(n - 1):
            keys.append(Passed.apply(keys[-1], group))  # type: ignore[no-untyped-call]
            values.append(Passed.apply(values[-1], group))  # type: ignore[no-untyped-call]
        back_S = torch.cat([places[(r - turn) % n] for turn in range(n)]).argsort()
        k, v = (torch.cat(x, 2)[:, :, back_S] for x in (keys, values))
        return causal(q, k, v, real_BS, mine_L)

    use(model, attend)
    ids_BL, positions_BL, labels_BL, real_BS = held(batch, 2 * n, mine_L)
    if FAULT.get() == "positions_of_ranks":
        positions_BL = (r * len(mine_L) + torch.arange(len(mine_L))).expand_as(ids_BL)
    logits_BLV = model(ids_BL, positions_BL, real_BS)
    own_count = (labels_BL != IGNORED).sum()
    count = summed(own_count)
    if FAULT.get() == "averaged_by_rank":
        count = own_count * dist.get_world_size()
    share = total(logits_BLV, labels_BL) / count.clamp(min=1)
    share.backward()
    sum_gradients(model)
    return summed(share)


@step(RECIPE, limits="dtype=fp32")
def with_context_parallel(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Torch's own context parallelism, whose ring has no mask: rows are padded behind.

    It merges the ring's parts in fp32, also where everything else is in fp64.
    """
    axis, n = mesh["sp"], mesh["sp"].size()
    real_BS = batch["attention_mask"]
    behind_BS = real_BS.argsort(dim=1, descending=True, stable=True)
    batch = {name: x.gather(1, behind_BS) if x.ndim == 2 else x for name, x in batch.items()}
    ids_BS, positions_BS, labels_BS, real_BS = (x.contiguous() for x in padded(batch, 2 * n))

    def attend(q: Tensor, k: Tensor, v: Tensor, _real_BS: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    use(model, attend)
    buffers = [ids_BS, positions_BS, labels_BS]
    with context_parallel(
        axis, buffers=buffers, buffer_seq_dims=[1] * 3, no_restore_buffers={*buffers}
    ):
        share = total(model(ids_BS, positions_BS, real_BS), labels_BS)
        share = share / summed((labels_BS != IGNORED).sum()).clamp(min=1)
        share.backward()
    sum_gradients(model)
    return summed(share)


class Trainer:
    """A trainer as an object with a configuration and a state."""

    def __init__(self) -> None:
        self.steps, self.log = 0, list[float]()

    def __call__(self, model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
        self.group = mesh["sp"].get_group()
        use(model, gathering(self.group))
        loss = self.training_step(model, batch)
        self.on_after_backward(model)
        self.steps += 1
        self.log.append(float(loss))
        return loss

    def training_step(self, model: Any, batch: Batch) -> Tensor:
        share, count = shard_loss(model, batch, self.group)
        (share / count).backward()
        return summed(share / count)

    def on_after_backward(self, model: Any) -> None:
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        flat = torch.cat(gradients)
        dist.all_reduce(flat)
        sizes = [len(gradient) for gradient in gradients]
        for gradient, whole in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(whole)


trainer = step(RECIPE)(Trainer())


@step(RECIPE, micro_batches=True)
def accumulating(model: Any, batches: list[Batch], mesh: DeviceMesh) -> Tensor:
    """Micro-batches are divided by the number of targets of all of them."""
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    labels = torch.stack([(next_labels(batch) != IGNORED).sum() for batch in batches]).sum()
    dist.all_reduce(labels, group=mesh["dp"].get_group())
    count, loss = labels.clamp(min=1), torch.zeros_like(model.head.bias[0])
    for batch in batches:
        ids_BL, positions_BL, labels_BL, real_BS = cut(batch, group)
        share = total(model(ids_BL, positions_BL, real_BS), labels_BL) / count
        share.backward()
        loss += share.detach()
    sum_gradients(model)
    return summed(loss)


@step(RECIPE)
def checkpointing(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """Each block runs again in backward."""
    model.checkpointed = True
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    share, count = shard_loss(model, batch, group)
    (share / count).backward()
    sum_gradients(model)
    return summed(share / count)


@step(RECIPE)
def compiled(model: Any, batch: Batch, mesh: DeviceMesh) -> Tensor:
    """The whole model is compiled, without a compiler of C."""
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    share, count = shard_loss(torch.compile(model, backend="aot_eager"), batch, group)
    (share / count).backward()
    sum_gradients(model)
    return summed(share / count)


def adapters(model: Any, batch: Batch, mesh: DeviceMesh, *, unfreeze: bool = False) -> Tensor:
    """LoRA: only the adapters are trained."""
    if unfreeze:
        model.head.requires_grad_()
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    share, count = shard_loss(model, batch, group)
    (share / count).backward()
    sum_gradients(model)
    return summed(share / count)


with_lora = step(Recipe(WithAdapters, loss))(adapters)
unfrozen = step(Recipe(WithAdapters, loss))(partial(adapters, unfreeze=True))


def fussy_loss(model: Any, batch: Batch) -> Tensor:
    """A loss that takes no other labels than ids of its rows, or none."""
    labels_BS = batch["labels"]
    real_BS = batch["attention_mask"].bool()
    assert ((labels_BS == IGNORED) | (labels_BS == batch["input_ids"]) & real_BS).all()
    return loss(model, batch)


fussy = step(Recipe(Tiny, fussy_loss))(plain_loop.function)


def __getattr__(name: str) -> Any:
    """Return the step `STYLE__FAULT`."""
    style, _, fault = name.partition("__")
    if not fault or style not in globals():
        raise AttributeError(name)
    right: Step = globals()[style]

    def faulty(*given: Any) -> Any:
        FAULT.set(fault)
        try:
            return right(*given)
        finally:
            FAULT.set("")

    has_parts = right._micro_batches
    faulty.__name__ = name
    return step(right.recipe, micro_batches=has_parts, limits=right.limits)(faulty)
