"""veomni's own packages, without what they import beside what a step needs."""

import logging
from importlib import import_module
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.wiring.absent import absent

# Packages for data sets, downloads, pictures and logs; a step calls none of them.
ABSENT = (
    *("PIL", "av", "blobfile", "datasets", "diffusers", "einops", "librosa"),
    *("tiktoken", "timm", "torchdata", "wandb"),
)

# transformers looks for flash-attn once, and must not find the stand-in yet.
for _name in ("modeling_utils", "models.auto.modeling_auto", "processing_utils"):
    import_module(f"transformers.{_name}")
flash.give_to_transformers()
logging.getLogger("veomni").setLevel(logging.WARNING)
with absent(*ABSENT):
    base: Any = import_module("veomni.trainer.base")
    pairs: Any = import_module("veomni.trainer.text_dpo_trainer")
    texts: Any = import_module("veomni.trainer.text_trainer")
    arguments: Any = import_module("veomni.arguments.arguments_types")
    parallel_state: Any = import_module("veomni.distributed.parallel_state")
    sharing: Any = import_module("veomni.distributed.sequence_parallel")
    wrapping: Any = import_module("veomni.distributed.torch_parallelize")
    traces: Any = import_module("veomni.trainer.callbacks.trace_callback")


class OnCpu(DistributedDataParallel):
    """A wrapper that is not told of a GPU."""

    def __init__(self, module: Any, *, device_ids: Any, **options: Any) -> None:
        del device_ids
        super().__init__(module, **options)


wrapping.DDP = OnCpu
