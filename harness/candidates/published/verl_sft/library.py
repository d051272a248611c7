"""Methods of the released trainer, lifted out of a module that imports hydra, ray and peft."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.flash_stand_in.padding import padding_functions
from harness.candidates.published.verl.library import gather_outputs_and_unpad, ulysses
from harness.candidates.published.wiring.packages import folder, lifted

TRAINER = folder("verl") / "trainer" / "fsdp_sft_trainer.py"
SHARDING = folder("verl") / "workers" / "sharding_manager" / "fsdp_ulysses.py"

ShardingManager = lifted(
    SHARDING,
    "FSDPUlyssesShardingManager",
    {
        "BaseShardingManager": object,
        "DataProto": object,
        "DeviceMesh": DeviceMesh,
        "get_ulysses_sequence_parallel_group": ulysses.get_ulysses_sequence_parallel_group,
        "set_ulysses_sequence_parallel_group": ulysses.set_ulysses_sequence_parallel_group,
    },
)

# The names that the methods take from their module. Packing is flash-attn's, so the stand-in's.
# A rank that has no GPU takes the branch that sums and divides, because gloo has no average.
GIVEN: Mapping[str, Any] = {
    **padding_functions(),
    "gather_outputs_and_unpad": gather_outputs_and_unpad,
    "gather_outpus_and_unpad": gather_outputs_and_unpad,
    "get_ulysses_sequence_parallel_world_size": ulysses.get_ulysses_sequence_parallel_world_size,
    "is_cuda_available": False,
    "is_npu_available": True,
    "log_gpu_memory_usage": lambda *_, **__: None,
    "logger": logging.getLogger(__name__),
    "nullcontext": nullcontext,
    "TensorDict": object,
    "time": time,
    "ulysses_pad_and_slice_inputs": ulysses.ulysses_pad_and_slice_inputs,
}


def methods(cross_entropy: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `training_step` and the method that it calls for each micro-batch."""
    given = {**GIVEN, "nn": SimpleNamespace(CrossEntropyLoss=cross_entropy)}
    step, micro_step = (
        lifted(TRAINER, f"FSDPSFTTrainer.{name}", given)
        for name in ("training_step", "_compute_loss_and_backward")
    )
    return step, micro_step
