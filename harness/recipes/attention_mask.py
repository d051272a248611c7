"""Changes the masks that a model of transformers hands its attention.

Each attention module is called with a mask of four dims, or with none if only what comes later is
hidden. Layers with a state are handed no such mask, so nothing changes for them.

Legend: B rows, Q queries, K keys; both are columns.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from harness.recipes.batch import Batch

# Returns what queries see, from what they see rightly, the batch, and the window of the module.
Seen = Callable[[Tensor, Batch, int | None], Tensor]
# In a mask that is added to scores, what is hidden has a large negative number.
HIDDEN = -1.0
# In place of the mask of a module that is called without one.
MISSING = object()


@contextmanager
def seeing(model: nn.Module, seen: Seen | None, batch: Batch) -> Iterator[None]:
    """Have each causal attention of a model see what `seen` makes of what it would see."""
    with ExitStack() as stack:
        for module in model.modules():
            if seen is not None and getattr(module, "is_causal", False):
                hook = partial(_with_changed_mask, seen, batch)
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def _with_changed_mask(
    seen: Seen,
    batch: Batch,
    module: nn.Module,
    given: Any,
    named: dict[str, Any],
) -> Any:
    mask_B1QK, ids_BK = named.get("attention_mask", MISSING), batch["input_ids"]
    if mask_B1QK is not None and getattr(mask_B1QK, "ndim", 0) != 4:
        # It is called in another way.
        return None
    if mask_B1QK is None:
        mask_B1QK = ids_BK.new_ones(ids_BK.shape[-1:] * 2, dtype=torch.bool).tril()[None, None]
    seen_B1QK = mask_B1QK if mask_B1QK.dtype == torch.bool else mask_B1QK > HIDDEN
    seen_B1QK = seen(seen_B1QK, batch, getattr(module, "sliding_window", None))
    # Eager and fused attention both take a mask that is added to scores.
    scores = torch.zeros(seen_B1QK.shape, device=seen_B1QK.device)
    hidden = torch.finfo(scores.dtype).min
    return given, named | {"attention_mask": scores.masked_fill(~seen_B1QK, hidden)}
