"""A second model, as a reference or an old policy, that needs no weights of its own."""

from copy import deepcopy
from typing import Any


def scaled(model: Any, share: float) -> Any:
    """Return a model whose weights are this share of these, without the hooks of this one."""
    other = deepcopy(model).requires_grad_(False)
    for module in other.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    # Without its hooks nobody collects what routers say, and their loss would fail.
    other.config.output_router_logits = False
    for parameter in other.parameters():
        parameter.mul_(share)
    return other
