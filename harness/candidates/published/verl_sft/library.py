"""Methods of the released trainer, whose module imports hydra, ray and peft."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
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

# What the methods take from their module. The packing is flash-attn's, of which we have a
# stand-in; a rank without a GPU takes the branch that sums and divides instead of averaging.
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
    "torch": torch,
    "ulysses_pad_and_slice_inputs": ulysses.ulysses_pad_and_slice_inputs,
}


def methods(cross_entropy: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`training_step` and what it calls for each micro-batch, with this loss function."""
    given = {**GIVEN, "nn": SimpleNamespace(CrossEntropyLoss=cross_entropy)}
    step, micro_step = (
        lifted(TRAINER, f"FSDPSFTTrainer.{name}", given)
        for name in ("training_step", "_compute_loss_and_backward")
    )
    return step, micro_step
