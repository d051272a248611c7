"""The parts of axolotl that a step needs, on a machine without a GPU."""

import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates.published.flash_stand_in import blocks, flash
from harness.candidates.published.wiring.packages import bare_packages, folder, lifted
from harness.candidates.published.wiring.stand_ins import Replacing

# axolotl sends cumulative lengths to the current CUDA device.
CpuTorch: Any = Replacing(torch, cuda=SimpleNamespace(current_device=lambda: "cpu"))
# A ring expects half precision, so it gets fp64 for fp32 and fp32 for bf16. With fp32 tensors its
# accumulators would be its buffers; and it converts gradients of queries to bf16.
WiderTorch: Any = Replacing(torch, float32=torch.float64, bfloat16=torch.float32)


def _all_reduce(tensor: Tensor, op: Any, group: dist.ProcessGroup) -> None:
    """Reduce; gloo lacks a mean of integers, of which NCCL drops the remainder."""
    dist.all_reduce(tensor, group=group)
    if op == dist.ReduceOp.AVG:
        is_whole = not tensor.is_floating_point()
        tensor.copy_(tensor.div(group.size(), rounding_mode="floor" if is_whole else None))


def _all_gather(received: list[Tensor], tensor: Tensor, group: dist.ProcessGroup) -> None:
    """Gather by broadcasts; gloo's all_gather takes only equal shapes."""
    for peer, buffer in enumerate(received):
        if peer == group.rank():
            buffer.copy_(tensor)
        dist.broadcast(buffer, dist.get_global_rank(group, peer), group=group)


blocks.install()
flash.give_to_transformers()
import_module("axolotl.utils")
bare_packages("axolotl.utils.collators")

_SCHEMAS = folder("axolotl.utils.schemas") / "validation.py"


def _check_config() -> None:
    """Run the released check of a config: it gives transformers the names that rings import."""
    check = lifted(
        _SCHEMAS,
        "ComplexValidationMixin.check_context_parallel_size",
        {
            "model_validator": lambda **_: lambda method: method,
            "attn_impl_base": str,
            "sys": sys,
            "LOG": SimpleNamespace(warning=lambda *_: None),
        },
    )
    check(
        SimpleNamespace(
            sequence_parallel_degree=None,
            context_parallel_size=2,
            attn_implementation="flash_attention_2",
            sample_packing=False,
            micro_batch_size=1,
        )
    )


_check_config()
sharing = import_module("axolotl.utils.ctx_managers.sequence_parallel")
collators = import_module("axolotl.utils.collators.batching")
registered = import_module("axolotl.monkeypatch.ring_attn.patch")
with patch.object(torch, "compile", lambda function: function):
    batch_ring = import_module("axolotl.monkeypatch.ring_attn.adapters.batch")
RingAttnFunc: Any = sharing.RingAttnFunc

vars(sharing)["dist"] = Replacing(dist, all_reduce=_all_reduce, all_gather=_all_gather)
vars(registered)["torch"] = CpuTorch
vars(sys.modules["ring_flash_attn.ring_flash_attn"])["torch"] = WiderTorch


def grpo_methods() -> tuple[Any, Any]:
    """Return TRL's `_get_per_token_logps_and_entropies` and `_compute_loss`."""
    trainers = folder("trl.trainer")
    helpers = {
        name: lifted(trainers / "utils.py", name, {"F": F})
        for name in ("selective_log_softmax", "entropy_from_logits")
    }
    names = {
        **helpers,
        "profiling_decorator": lambda method: method,
        # The methods use these for metrics only.
        **dict.fromkeys(("nanmin", "nanmax"), torch.mean),
    }
    file = trainers / "grpo_trainer.py"
    logps, loss = (
        lifted(file, f"GRPOTrainer.{name}", names)
        for name in ("_get_per_token_logps_and_entropies", "_compute_loss")
    )
    return logps, loss
