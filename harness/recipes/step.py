"""A user's function `(model, batch, mesh) -> loss` as a candidate."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, update_wrapper
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.case import Case
from harness.recipes.batch import rows_of
from harness.recipes.hypotheses import hypotheses
from harness.recipes.hypothesis import Hypothesis
from harness.recipes.inside import embedded, emitted, numbers, with_distinct_ids
from harness.recipes.recipe import Recipe, computing_in, parted
from harness.reference.weights import TORCH_DTYPES

if TYPE_CHECKING:
    from harness.candidates.protocol import Emit, Rank

# FSDP, torch.compile and activation checkpointing put these into names of parameters.
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
# A function may make groups of its own, and then every rank of the pool has to take part. The loss
# is that of the recipe, so the case's own field for it stays at its default.
LIMITS = "ranks=all steps=1 loss=token-mean checkpoint=0"


def silent(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
    """Emit nothing."""


class Step:
    """A function that takes a model, a batch and a mesh, as a candidate.

    It can still be called like the function that it decorates.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        recipe: Recipe,
        *,
        micro_batches: bool,
        limits: str,
        supports: Callable[[Case], str | None] | None,
    ) -> None:
        update_wrapper(self, function)
        self.function, self.recipe = function, recipe
        self.name = getattr(function, "__name__", type(function).__name__)
        self.limits = limits
        self._micro_batches, self._supports = micro_batches, supports

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.function(*given, **named)

    def supports(self, case: Case) -> str | None:
        return self._supports(case) if self._supports else None

    def run(self, case: Case, rank: "Rank", emit: "Emit") -> None:
        """Take the step on this rank; emit the loss, its metrics, and the gradients."""
        layout: list[Tensor] = []
        if is_traced(emit):
            other = with_distinct_ids(case)
            layout = numbers(case, self._take(other, rank)[2])
        model, result, calls = self._take(case, rank, layout, emit)
        emit("embedded", torch.tensor(max((ids.numel() for ids in calls), default=0)))
        _emit(model, result, emit)

    def _take(
        self, case: Case, rank: "Rank", layout: Sequence[Tensor] = (), emit: "Emit" = silent
    ) -> tuple[nn.Module, Any, list[Tensor]]:
        dtype = TORCH_DTYPES[case.dtype]
        model = self.recipe.build(case, rank.device, dtype)
        parts = [
            self.recipe.batch(case, rows, rank.device, dtype)
            for rows in rows_of(case, rank.dp_index)
        ]
        mesh = mesh_of(rank, case.dp, case.sp)
        with computing_in(dtype), embedded(model) as calls, emitted(model, layout, emit):
            result = self.function(model, parts if self._micro_batches else parts[0], mesh)
        return model, result, calls

    def run_plain(
        self, case: Case, rank: "Rank", emit: "Emit", variant: str, *, exactly: bool
    ) -> None:
        """Train as the recipe says, with all rows on this rank, or as a hypothesis says."""
        dtype = torch.float64 if exactly else TORCH_DTYPES[case.dtype]
        rows = list(range(len(case.rows)))
        if variant == "reversed":
            rows.reverse()
        if variant in self.hypotheses:
            self._run_hypothesis(self.hypotheses[variant], case, rank.device, emit)
            return
        wider = 3 if variant == "wider" else 0
        layout: list[Tensor] = []
        if is_traced(emit):
            other = with_distinct_ids(case)
            layout = numbers(other, self._take_plain(other, rows, rank.device, dtype, wider)[2])
        taken = self._take_plain(case, rows, rank.device, dtype, wider, layout, emit)
        _emit(*taken[:2], emit)

    def _take_plain(
        self,
        case: Case,
        rows: list[int],
        device: torch.device,
        dtype: torch.dtype,
        wider: int,
        layout: Sequence[Tensor] = (),
        emit: "Emit" = silent,
    ) -> tuple[nn.Module, Any, list[Tensor]]:
        model = self.recipe.build(case, device, dtype)
        batch = self.recipe.batch(case, rows, device, dtype, wider=wider)
        with computing_in(dtype), embedded(model) as calls, emitted(model, layout, emit):
            result = self.recipe.loss(model, batch)
            parted(result)[0].backward()
        return model, result, calls

    @cached_property
    def hypotheses(self) -> dict[str, Hypothesis]:
        """What can be wrong with a step of this recipe, by name."""
        return hypotheses(self.recipe.columns)

    def _run_hypothesis(
        self, hypothesis: Hypothesis, case: Case, device: torch.device, emit: "Emit"
    ) -> None:
        dtype = torch.float64
        model = self.recipe.build(hypothesis.case(case), device, dtype)
        micro_batches = [
            self.recipe.batch(case, rows, device, dtype)
            for replica in range(case.dp)
            for rows in rows_of(case, replica)
        ]
        total = torch.zeros((), dtype=dtype, device=device)
        with computing_in(dtype):
            for factor, part in hypothesis.of(micro_batches, case):
                loss = factor * parted(self.recipe.loss(model, part))[0]
                loss.backward()
                total += loss.detach()
        _emit(model, total, emit)


def is_traced(emit: "Emit") -> bool:
    """Return whether the outputs of modules are wanted."""
    return bool(getattr(emit, "traced", False))


def _emit(model: nn.Module, result: Any, emit: "Emit") -> None:
    loss, metrics = parted(result)
    emit("loss", loss.detach().reshape(()))
    for name, value in metrics.items():
        emit(f"metric.{name}", value.detach().reshape(()))
    for name, parameter in model.named_parameters():
        # A frozen parameter has a gradient of zeros, so that a step which trains it is found out.
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        emit(f"grad.{plain_name(name)}", whole(gradient))


def plain_name(name: str) -> str:
    """Return the name of a parameter without the parts that wrappers add."""
    for part in WRAPPERS:
        name = name.replace(part, "")
    return name


def whole(tensor: Any) -> Tensor:
    """Return all of a tensor that may be sharded."""
    if hasattr(tensor, "full_tensor"):
        device, group = tensor.device, tensor.device_mesh.get_group(0)
        if device.type != "cpu" and dist.get_backend(group) == "gloo":
            # On a GPU gloo crashes in what `full_tensor` calls: pytorch#152645.
            tensor = on_host(tensor)
        tensor = tensor.full_tensor().to(device)
    full: Tensor = tensor.detach()
    return full


def on_host(tensor: Any) -> Any:
    """Return a DTensor that has the same pieces in the memory of the host."""
    # An import of a second, for which only a sharded step waits.
    from torch.distributed.tensor import DTensor

    mesh = tensor.device_mesh
    mesh = DeviceMesh.from_group(
        mesh.get_all_groups(), "cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names
    )
    sizes = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(tensor.to_local().cpu(), mesh, tensor.placements, **sizes)


@lru_cache(maxsize=32)
def mesh_of(rank: "Rank", dp: int, sp: int) -> DeviceMesh:
    """Return torch's mesh of a case, with the axes dp and sp, made of the groups of a rank."""
    return DeviceMesh.from_group(
        [rank.dp, rank.sp],
        rank.device.type,
        torch.arange(dp * sp).view(dp, sp),
        mesh_dim_names=("dp", "sp"),
    )
