"""The released trainers of `swift rlhf`, imported without the services that they import."""

import importlib
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import transformers
from torch import Tensor
from torch.nn import functional as F

# It makes bare packages, which the modules below are in.
from harness.candidates.published.ms_swift import library
from harness.candidates.published.wiring.absent import absent, nothing
from harness.candidates.published.wiring.packages import bare_packages, folder, lifted

__all__ = ["DPOTrainer", "GRPOArgumentsMixin", "GRPOSample", "GRPOTrainer", "Template"]

# Data sets, adapters, images, servers that generate; and the release's own parts that need them.
ABSENT = (
    *("dacite", "datasets", "modelscope", "msgspec", "peft", "PIL", "pydantic", "trl"),
    *("swift.callbacks", "swift.hub", "swift.infer_engine", "swift.model.patcher"),
    *("swift.dataset.preprocessor", "swift.optimizers", "swift.rewards", "swift.rollout"),
    *("swift.rlhf_trainers.arguments", "swift.rlhf_trainers.vllm_client"),
    *("swift.template.template_inputs", "swift.template.utils", "swift.template.vision_utils"),
    *("swift.trainers.arguments", "swift.tuner_plugin", "swift.tuners"),
)
# Packages of which modules are imported, and which lack the names of others.
BARE = (
    *("swift.dataloader", "swift.dataset", "swift.loss", "swift.metrics", "swift.model"),
    *("swift.rl_core", "swift.rlhf_trainers", "swift.template", "swift.trainers", "swift.utils"),
)


class OfTrl(transformers.Trainer):  # type: ignore[misc]
    """A trainer of trl, as far as ms-swift calls it in a step: it counts micro-batches."""

    _step = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def log(self, *args: Any, **kwargs: Any) -> None:
        super().log(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        self._step += 1
        return loss


def of_trl() -> type[Any]:
    """Return a class to remove methods from, as the release does."""
    removed = {name: vars(OfTrl)[name] for name in ("__init__", "log")}
    return type("OfTrl", (OfTrl,), removed)


def imported(name: str) -> Any:
    """Import a released module."""
    return importlib.import_module(name)


def offer(module: str, **names: Any) -> None:
    vars(imported(module)).update(names)


def lifted_from(package: str, file: str, *names: str) -> dict[str, Any]:
    """Return released functions out of a module that cannot be imported."""
    path = folder(package) / file
    return {name: lifted(path, name, {"F": F, "Mapping": Mapping}) for name in names}


bare_packages(*BARE)
for _name in BARE:
    offer(_name, __getattr__=nothing)
_numbers = lifted_from(
    *("trl", "trainer/utils.py", "selective_log_softmax", "entropy_from_logits"),
    *("nanmax", "nanmin"),
)
with absent(*ABSENT):
    offer("trl", DPOTrainer=of_trl(), GRPOTrainer=of_trl())
    offer("trl.trainer.dpo_config", DPOConfig=SimpleNamespace(loss_weights=None))
    offer("trl.trainer.utils", **_numbers)
    offer("trl.trainer.grpo_trainer", **_numbers)
    offer("swift.hub", get_hub=lambda: SimpleNamespace(patch_hub=nullcontext))
    offer("swift.optimizers", optimizers_map={"default": nothing("OptimizerCallback")})
    offer("swift.rewards", orms={"accuracy": nothing("Accuracy")})
    offer("swift.metrics", MeanMetric=imported("swift.metrics.utils").MeanMetric)
    offer(
        "swift.utils",
        get_packed_seq_params=library.get_packed_seq_params,
        **lifted_from("swift.utils", "torch_utils.py", "to_device"),
    )
    Template: Any = imported("swift.template.base").Template
    offer("swift.template", Template=Template)
    mixin = imported("swift.trainers.mixin")
    offer(
        "swift.trainers",
        DataLoaderMixin=mixin.DataLoaderMixin,
        SwiftMixin=mixin.SwiftMixin,
        disable_gradient_checkpointing=imported(
            "swift.trainers.utils"
        ).disable_gradient_checkpointing,
    )
    DPOTrainer: Any = imported("swift.rlhf_trainers.dpo_trainer").DPOTrainer
    GRPOArgumentsMixin: Any = imported("swift.rlhf_trainers.args_mixin").GRPOArgumentsMixin
    GRPOSample: Any = imported("swift.rl_core.data").GRPOSample
    reinforced: Any = imported("swift.rlhf_trainers.grpo_trainer")
GRPOTrainer: Any = reinforced.GRPOTrainer
# A row is encoded already.
reinforced.encode_sample = lambda sample, _: dict(sample.encoded)
