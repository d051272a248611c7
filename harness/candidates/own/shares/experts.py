"""A right step in which the layers of experts can be changed.

Legend: T tokens, E experts, K chosen ones, D width of the model.
"""

from typing import Any

from torch import Tensor

from harness.candidates.own.shares.step import Supervised


class OfExperts(Supervised):
    """Hands on what routers and experts give; a mutant changes it."""

    family = "qwen3-moe"

    def hooks(self, model: Any) -> list[Any]:
        hooks = []
        for module in model.modules():
            if type(module).__name__.endswith("Router"):
                hooks.append(module.register_forward_hook(self._after_router))
            if type(module).__name__.endswith("Experts"):
                hooks.append(module.register_forward_hook(self._after_experts))
        return hooks

    def _after_router(self, _router: Any, _given: Any, out: Any) -> Any:
        return self.routed_to(*out)

    def _after_experts(self, experts: Any, given: Any, _out: Any) -> Any:
        return self.computed_by(experts, *given)

    def routed_to(self, logits_TE: Tensor, weights_TK: Tensor, chosen_TK: Tensor) -> Any:
        return logits_TE, weights_TK, chosen_TK

    def computed_by(
        self, experts: Any, x_TD: Tensor, chosen_TK: Tensor, weights_TK: Tensor
    ) -> Any:
        return experts.forward(x_TD, chosen_TK, weights_TK)

    def is_own(self, chosen_TK: Tensor, experts: int) -> Tensor:
        """Whether a chosen expert is one of this rank's, if peers shared them."""
        return chosen_TK * self.sp.size() // experts == self.sp.rank()
