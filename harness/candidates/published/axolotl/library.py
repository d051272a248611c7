"""The parts of axolotl that a step takes, on a machine without a GPU."""

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


class CpuTorch:
    """torch whose current CUDA device is the CPU; axolotl sends cumulative lengths there."""

    cuda = SimpleNamespace(current_device=lambda: "cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class WiderTorch:
    """torch with fp64 for fp32 and fp32 for bf16, for a ring that expects half precision.

    In fp32 the ring's accumulators would be its buffers; it turns gradients of queries to bf16.
    """

    float32, bfloat16 = torch.float64, torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class OverGloo:
    """torch.distributed with what gloo lacks: a mean of integers, and shapes that differ."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    @staticmethod
    def all_reduce(tensor: Tensor, op: Any, group: dist.ProcessGroup) -> None:
        dist.all_reduce(tensor, group=group)
        if op == dist.ReduceOp.AVG:
            # NCCL drops the remainder of a mean of integers.
            whole = not tensor.is_floating_point()
            tensor.copy_(tensor.div(group.size(), rounding_mode="floor" if whole else None))

    @staticmethod
    def all_gather(received: list[Tensor], tensor: Tensor, group: dist.ProcessGroup) -> None:
        for peer, buffer in enumerate(received):
            if peer == group.rank():
                buffer.copy_(tensor)
            dist.broadcast(buffer, dist.get_global_rank(group, peer), group=group)


blocks.install()
flash.give_to_transformers()
import_module("axolotl.utils")
bare_packages("axolotl.utils.collators")

_SCHEMAS = folder("axolotl.utils.schemas") / "validation.py"


def _validated() -> None:
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


_validated()
sharing = import_module("axolotl.utils.ctx_managers.sequence_parallel")
collators = import_module("axolotl.utils.collators.batching")
registered = import_module("axolotl.monkeypatch.ring_attn.patch")
with patch.object(torch, "compile", lambda function: function):
    batch_ring = import_module("axolotl.monkeypatch.ring_attn.adapters.batch")
RingAttnFunc: Any = sharing.RingAttnFunc

vars(sharing)["dist"] = OverGloo()
vars(registered)["torch"] = CpuTorch()
vars(sys.modules["ring_flash_attn.ring_flash_attn"])["torch"] = WiderTorch()


def grpo_methods() -> tuple[Any, Any]:
    """TRL's `_get_per_token_logps_and_entropies` and `_compute_loss`."""
    place = folder("trl.trainer")
    helpers = {
        name: lifted(place / "utils.py", name, {"torch": torch, "F": F})
        for name in ("selective_log_softmax", "entropy_from_logits")
    }
    names = {
        **helpers,
        "torch": torch,
        "profiling_decorator": lambda method: method,
        # The methods use these for metrics only.
        **dict.fromkeys(("nanmin", "nanmax"), torch.mean),
    }
    file = place / "grpo_trainer.py"
    logps, loss = (
        lifted(file, f"GRPOTrainer.{name}", names)
        for name in ("_get_per_token_logps_and_entropies", "_compute_loss")
    )
    return logps, loss
