"""A user's function `(model, batch, mesh) -> loss` as a candidate."""

from collections.abc import Callable, Sequence
from functools import lru_cache, update_wrapper
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from harness.against import RECIPE_LIMITS
from harness.case import Case
from harness.case.settings import NONE, Settings, as_limits, chosen, require_valid
from harness.recipes.batch import describing, rows_of
from harness.recipes.hypothesis import Hypothesis
from harness.recipes.inside import embedded, emitted, numbers, with_distinct_ids
from harness.recipes.recipe import Recipe, computing_in
from harness.recipes.result import emit_result, is_traced, silent
from harness.reference.weights import TORCH_DTYPES

if TYPE_CHECKING:
    from harness.rank import Emit, Rank

# A function may make groups of its own, and then every rank of the pool has to take part. The loss
# is that of the recipe, so the case's own field for it stays at its default.
LIMITS = f"ranks=all {RECIPE_LIMITS} checkpoint=0"


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
        settings: Settings = NONE,
    ) -> None:
        update_wrapper(self, function)
        self.function, self.recipe = function, recipe
        self.settings = {**recipe.of_loss, **settings}
        require_valid(self.settings, function)
        self.name = getattr(function, "__name__", type(function).__name__)
        self.limits = f"{limits} {as_limits({**recipe.settings, **settings})}".rstrip()
        self._micro_batches, self._supports = micro_batches, supports

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.function(*given, **named)

    def supports(self, case: Case) -> str | None:
        reason = self.recipe.refuses(case)
        return reason or (self._supports(case) if self._supports else None)

    def run(self, case: Case, rank: "Rank", emit: "Emit") -> None:
        """Take the step on this rank; emit the loss, its metrics, and the gradients."""
        layout: list[Tensor] = []
        if is_traced(emit):
            other = with_distinct_ids(case)
            layout = numbers(case, self._take(other, rank)[2])
        model, result, calls = self._take(case, rank, layout, emit)
        emit("embedded", torch.tensor(max((ids.numel() for ids in calls), default=0)))
        emit_result(model, result, emit)

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
        with (
            computing_in(dtype),
            embedded(model) as calls,
            emitted(model, layout, emit),
            describing(parts[0], is_list=self._micro_batches),
        ):
            result = self.function(
                model,
                parts if self._micro_batches else parts[0],
                mesh,
                **chosen(self.settings, case),
            )
        return model, result, calls

    def run_plain(
        self, case: Case, rank: "Rank", emit: "Emit", variant: str, *, exactly: bool
    ) -> None:
        """Train as the recipe says."""
        self.recipe.run_plain(case, rank, emit, variant, exactly=exactly)

    @property
    def hypotheses(self) -> dict[str, Hypothesis]:
        """What can be wrong with a step of this recipe, by name."""
        return self.recipe.hypotheses


@lru_cache(maxsize=32)
def mesh_of(rank: "Rank", dp: int, sp: int) -> DeviceMesh:
    """Return torch's mesh of a case, with the axes dp and sp, made of the groups of a rank."""
    return DeviceMesh.from_group(
        [rank.dp, rank.sp],
        rank.device.type,
        torch.arange(dp * sp).view(dp, sp),
        mesh_dim_names=("dp", "sp"),
    )
