"""The parts of ms-swift that a step needs, without what its packages import beside them."""

import logging
import os
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from transformers import PretrainedConfig

from harness.candidates.published.wiring.packages import bare_packages, folder, lifted

bare_packages(
    *("swift", "swift.dataloader", "swift.loss", "swift.metrics"),
    *("swift.model", "swift.trainers", "swift.utils"),
)


def _lifted(module: str, name: str, **given: Any) -> Any:
    package, _, file = module.rpartition(".")
    return lifted(folder(package) / f"{file}.py", name, given)


def _set_names(module: str, **names: Any) -> None:
    vars(sys.modules[module]).update(names)


# Names that `swift.utils` has from modules that import modelscope, datasets and more.
_set_names(
    "swift.utils",
    HfConfigFactory=_lifted(
        "swift.utils.hf_config",
        "HfConfigFactory",
        PretrainedConfig=PretrainedConfig,
        deep_getattr=_lifted("swift.utils.utils", "deep_getattr"),
    ),
    get_cu_seqlens_from_position_ids=_lifted(
        "swift.utils.transformers_utils", "get_cu_seqlens_from_position_ids"
    ),
    get_dist_setting=_lifted("swift.utils.env", "get_dist_setting", os=os),
    get_device=lambda: "cpu",
    get_current_device=lambda: "cpu",
    get_logger=lambda: logging.getLogger("ms_swift"),
)
# The model is not wrapped, and has one modality.
_set_names("swift.model", get_llm_model=lambda model: model.model)
# Base class of a data loader that is not used.
_set_names("swift.dataloader", DataLoaderDispatcher=object)

import swift.sequence_parallel as package  # noqa: E402 - only now can it be imported

SequenceParallel: Any = package.SequenceParallel
sequence_parallel: Any = package.sequence_parallel

# The module that makes meshes; older releases have all of it in `ulysses`.
meshes: ModuleType = sys.modules[SequenceParallel.__module__]

per_token_loss_func_sp: FunctionType = _lifted(
    "swift.trainers.utils",
    "per_token_loss_func_sp",
    os=os,
    CrossEntropyLoss=nn.CrossEntropyLoss,
    ChunkedCrossEntropyLoss=package.ChunkedCrossEntropyLoss,
    GatherLoss=package.GatherLoss,
    sequence_parallel=sequence_parallel,
)
per_token_loss_func: FunctionType = _lifted("swift.trainers.utils", "per_token_loss_func", F=F)
# Releases before 4.6.0 import the function there, when a loss of `--loss_type` is computed.
_set_names("swift.trainers", per_token_loss_func=per_token_loss_func)

compute_loss: Callable[..., Any] = _lifted(
    "swift.trainers.seq2seq_trainer",
    "Seq2SeqTrainer.compute_loss",
    dist=dist,
    sequence_parallel=sequence_parallel,
    per_token_loss_func=per_token_loss_func,
    per_token_loss_func_sp=per_token_loss_func_sp,
    is_peft_available=lambda: False,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES={},
)
get_packed_seq_params: Callable[..., Any] = _lifted(
    "swift.utils.transformers_utils", "get_packed_seq_params"
)


def compute_sft_loss() -> Callable[..., Any]:
    """Return the loss of a text model's template; before 4.3 it is in the trainer itself."""
    try:
        method = _lifted("swift.template.base", "Template.compute_sft_loss")
    except AttributeError:
        return lambda model, inputs, **_: model(**inputs)
    return lambda *args, **kwargs: method(None, *args, **kwargs)


def loss_by_name(trainer: Any) -> Callable[..., Any]:
    """Return the loss that `--loss_type cross_entropy` puts in the place of the trainer's own."""
    from swift.loss.causal_lm import CustomCrossEntropyLoss

    loss: Callable[..., Any] = CustomCrossEntropyLoss(trainer.args, trainer)
    return loss


def mean_metric(group: dist.ProcessGroup) -> Any:
    """Return the metric that gathers the log of a channel."""
    from swift.metrics.utils import MeanMetric

    return MeanMetric(device="cpu", group=group)
