"""A right Ulysses step for any recipe of a transformers model: read it from top to bottom.

Take `ulysses(recipe)` to see that a recipe can be judged, or as the beginning of a step of your
own. A rank holds some columns of some rows, and in attention some heads of whole rows.

1. The loss is the recipe's own. Every rank computes it from the logits of all ranks, and keeps the
   gradient of the logits that it computed itself. So any loss will do that calls the model, and
   takes nothing of it but logits.
2. Attention is called through transformers' interface, so sinks, windows and scales are those of
   each layer. A layer with a state over tokens computes whole rows on each rank.

Legend: B rows, R rows of this rank, S columns of whole rows, L columns of this rank, N heads, H
head dim, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from harness.recipes import Recipe, Step, step
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.result import parted

# The ends of the names of layers that have a state over tokens.
WITH_STATE = ("GatedDeltaNet",)


def ulysses(recipe: Recipe, **options: Any) -> Step:
    """Return a right step of a recipe; `options` are those of `step`."""

    @step(recipe, **options)
    def ulysses_step(model: Any, batch: Batch, mesh: Any, **settings: Any) -> Any:
        rows = of_all_replicas(batch, mesh["dp"].get_group())
        loss, metrics = parted(recipe.loss(Shared(model, mesh), rows, **settings))
        loss.backward()
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        return loss.detach(), {name: metric.detach() for name, metric in metrics.items()}

    return ulysses_step


def of_all_replicas(batch: Batch, group: Any) -> Batch:
    """Return the rows of all replicas as one batch, as wide as the widest of them."""
    width = torch.tensor(batch["input_ids"].shape[1], device=batch["input_ids"].device)
    dist.all_reduce(width, dist.ReduceOp.MAX, group)
    joined: Batch = {}
    for name, table in batch.items():
        filling = IGNORED if name == "labels" else 0
        wide = padded(table, 1, int(width), filling) if table.ndim > 1 else table
        joined[name] = gathered(wide, 0, group)
    return joined


class Shared:
    """The model as a loss calls it: with whole rows, of which each rank computes a part."""

    def __init__(self, model: Any, mesh: Any) -> None:
        self.config = model.config
        self._model, self._dp, self._sp = model, mesh["dp"].get_group(), mesh["sp"].get_group()

    def __call__(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, **options: Any
    ) -> Any:
        """Return the logits of all rows, and those of routers if they are asked for."""
        rows, columns = input_ids.shape
        ids_RS, positions_RS, real_RS = map(self._own, (input_ids, position_ids, attention_mask))
        with computing_in_parts(self._model, real_RS.bool(), self._sp) as seen:
            out = self._model(
                input_ids=cut(ids_RS, self._sp),
                position_ids=cut(positions_RS, self._sp),
                **(options | seen),
            )
        shown = SimpleNamespace(logits=self._joined(out.logits)[:rows, :columns])
        if options.get("output_router_logits"):
            layers = (layer.view(*out.logits.shape[:2], -1) for layer in out.router_logits)
            joined = (self._joined(layer)[:rows, :columns] for layer in layers)
            shown.router_logits = tuple(layer.flatten(0, 1) for layer in joined)
        return shown

    def _own(self, x_BS: Tensor) -> Tensor:
        """Return the rows of this rank, padded so that ranks share them evenly."""
        rows, columns = (
            -(-size // group.size()) * group.size()
            for size, group in zip(x_BS.shape, (self._dp, self._sp), strict=True)
        )
        even = padded(padded(x_BS, 0, rows), 1, columns)
        x_RS: Tensor = even.chunk(self._dp.size())[self._dp.rank()]
        return x_RS

    def _joined(self, x_RLV: Tensor) -> Tensor:
        return gathered(gathered(x_RLV, 1, self._sp), 0, self._dp)


@contextmanager
def computing_in_parts(
    model: Any,
    real_RS: Tensor,
    group: Any,
    *,
    attend: Callable[..., Any] | None = None,
    whole: Callable[[Tensor], Tensor] | None = None,
    own: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[dict[str, Any]]:
    """Have the layers of a model that need whole rows see them; yield what attention is given.

    `whole` makes rows of columns, and `own` makes columns of rows. By default a rank has the
    columns that `cut` gives it.
    """
    from transformers import AttentionInterface

    AttentionInterface.register("ulysses", attend or attention)
    model.set_attn_implementation("ulysses")

    def before(_layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        part_RLD = given[0] if given else named["hidden_states"]
        return (whole(part_RLD) if whole else states(part_RLD, group),), {
            "attention_mask": real_RS
        }

    def after(_layer: nn.Module, _given: Any, out_RSD: Tensor) -> Tensor:
        return own(out_RSD) if own else cut(out_RSD, group)

    with ExitStack() as hooks:
        for layer in model.modules():
            if type(layer).__name__.endswith(WITH_STATE):
                hook = layer.register_forward_pre_hook(before, with_kwargs=True)
                hooks.callback(hook.remove)
                # In front of hooks that look at what a layer comes to for this rank.
                hooks.callback(layer.register_forward_hook(after, prepend=True).remove)
        yield {"real_RS": real_RS, "group": group, "use_cache": False}


def attention(
    _layer: nn.Module,
    q_RNLH: Tensor,
    k_RNLH: Tensor,
    v_RNLH: Tensor,
    _mask: Any,
    *,
    scaling: float,
    real_RS: Tensor,
    group: Any,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    place_S: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Exchange columns for heads, attend to whole rows, and exchange back.

    `place_S` has the columns of all ranks, in the order of ranks.
    """
    copies = q_RNLH.shape[1] // k_RNLH.shape[1]
    k_RNLH, v_RNLH = (x.repeat_interleave(copies, 1) for x in (k_RNLH, v_RNLH))
    q, k, v = (exchanged(x, 1, 2, group) for x in (q_RNLH, k_RNLH, v_RNLH))
    if place_S is None:
        place_S = torch.arange(real_RS.shape[1], device=q.device)
    visible_RSS = visible(real_RS[:, place_S], place_S, sliding_window or len(place_S))
    # Padding in front of a row sees nothing, and a softmax over infinities is not a number.
    # What is hidden gets a number that stays finite there, whatever the dtype.
    hidden_RSS = torch.where(visible_RSS, 0.0, torch.finfo(torch.float32).min)
    scores_RNSS = (q @ k.mT * scaling).float() + hidden_RSS[:, None]
    if s_aux is not None:
        # A sink is one more thing to attend to, without a value; each head has its own.
        sinks_N = s_aux.chunk(group.size())[group.rank()]
        sinks_RNS1 = sinks_N[:, None, None].expand(*scores_RNSS.shape[:3], 1)
        scores_RNSS = torch.cat((scores_RNSS, sinks_RNS1), -1)
    weights_RNSS = scores_RNSS.softmax(-1, dtype=torch.float32)[..., : len(place_S)].to(v.dtype)
    return exchanged(weights_RNSS @ v, 2, 1, group).transpose(1, 2), None


def visible(real_RS: Tensor, place_S: Tensor, window: int) -> Tensor:
    """Return whether each column of a row sees each other one -> RSS."""
    distance_SS = place_S[:, None] - place_S
    is_near_SS = (distance_SS >= 0) & (distance_SS < window)
    return is_near_SS & real_RS[:, None]


def exchanged(x: Tensor, split: int, join: int, group: Any) -> Tensor:
    """Split one dim over the group, and join what arrives along another."""
    pieces = torch.stack(x.chunk(group.size(), split)).contiguous()
    received: Tensor = AllToAll.apply(pieces, group)  # type: ignore[no-untyped-call]
    return torch.cat(tuple(received), join)


def cut(x: Tensor, group: Any) -> Tensor:
    """Return this rank's columns."""
    part: Tensor = x.chunk(group.size(), 1)[group.rank()]
    return part


def padded(x: Tensor, dim: int, size: int, filling: int = 0) -> Tensor:
    last = F.pad(x.movedim(dim, -1), (0, size - x.shape[dim]), value=filling)
    return last.movedim(-1, dim)


def states(x_RLD: Tensor, group: Any) -> Tensor:
    """Return whole rows, of which each rank makes something else."""
    whole: Tensor = Gathered.apply(x_RLD, 1, group, True)  # type: ignore[no-untyped-call]
    return whole


def gathered(x: Tensor, dim: int, group: Any) -> Tensor:
    """Return the parts of all ranks, of which all make the same loss."""
    whole: Tensor = Gathered.apply(x, dim, group, False)  # type: ignore[no-untyped-call]
    return whole


class AllToAll(torch.autograd.Function):
    """Piece number r goes to rank r; so do gradients, which go back the same way."""

    @staticmethod
    def forward(ctx: Any, pieces: Tensor, group: Any) -> Tensor:
        ctx.group, received = group, torch.empty_like(pieces)
        dist.all_to_all_single(received, pieces, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        returned: Tensor = AllToAll.apply(grads[0].contiguous(), ctx.group)  # type: ignore[no-untyped-call]
        return returned, None


class Gathered(torch.autograd.Function):
    """All ranks' parts along a dim.

    If each rank makes something else of the whole, a part gets the sum of all ranks' gradients.
    If all make the same of it, each rank has the whole gradient, and a part gets its piece.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Any, makes_another: bool) -> Tensor:
        ctx.dim, ctx.group, ctx.makes_another = dim, group, makes_another
        x = x.movedim(dim, 0).contiguous()
        whole = x.new_empty(group.size() * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(whole, x, group)
        return whole.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad = grads[0].movedim(ctx.dim, 0).contiguous()
        part = grad.chunk(ctx.group.size())[ctx.group.rank()].contiguous()
        if ctx.makes_another:
            dist.reduce_scatter_tensor(part := torch.empty_like(part), grad, group=ctx.group)
        return part.movedim(0, ctx.dim), None, None, None
