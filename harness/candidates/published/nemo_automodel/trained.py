"""Models of a recipe as the library's setup prepares them, and the log and gradients of a step."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

from harness.candidates.published.nemo_automodel.batches import of_step
from harness.candidates.published.nemo_automodel.mesh import Mesh
from harness.candidates.published.nemo_automodel.model import attach_ring, sharded
from harness.candidates.published.nemo_automodel.weights import give_gradients, own
from harness.recipes.batch import Batch as Table

# The collater's own.
PAD = 0


def prepared(model: Any, axes: Mesh, *, force_hf: bool, checkpoint: bool) -> nn.Module:
    """Return a model of the library's registry, or this one, sharded and with hooks."""
    model.set_attn_implementation("sdpa")
    dtype = next(model.parameters()).dtype
    built = model if force_hf else own(model)
    ready = sharded(built, axes, checkpoint=checkpoint, dtype=dtype)
    attach_ring(ready, axes, compiled=False)
    return ready


def log_of_step(run: Any, batches: Sequence[Table], ready: nn.Module, model: Any) -> Any:
    """Take the step of a released recipe -> its log; the model of ours gets the gradients."""
    dtype = next(model.parameters()).dtype
    with merging_in(dtype):
        sample = run._run_train_optim_step([of_step(batch, PAD) for batch in batches], None)
    if ready is not model:
        give_gradients(ready, model)
    return sample.metrics


def merging_in(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """While this lasts, torch's ring merges parts in fp32, or in fp64 if that is the dtype."""
    return patch.object(ring._cp_options, "convert_to_f32", dtype != torch.float64)
