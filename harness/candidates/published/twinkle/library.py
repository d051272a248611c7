"""twinkle's modules, without the packages that they import beside what a step needs.

Legend: T tokens, H hidden, V vocabulary.
"""

import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from harness.candidates.published.flash_stand_in import blocks, flash

# Packages for adapters, downloads, pictures and data sets; a step calls none of them.
ABSENT = (
    *("PIL", "accelerate", "datasets", "liger_kernel", "modelscope", "peft"),
    *("requests", "twinkle_client", "urllib3", "zmq"),
)


class _Nothing(ModuleType):
    """A module with every name that is asked of it, each a class without instances."""

    def __getattr__(self, name: str) -> Any:
        # Names that are imported from PIL are modules.
        if name.startswith("__") or self.__name__ == "PIL":
            raise AttributeError(name)
        empty_class = type(name, (Exception,), {})
        setattr(self, name, empty_class)
        return empty_class


class _Finder:
    """An importer that finds the absent packages while twinkle is imported."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Nothing(spec.name)

    def exec_module(self, _module: ModuleType) -> None:
        """Leave the module empty."""


@contextmanager
def _absent_packages() -> Iterator[None]:
    """While this lasts, let the absent packages be imported; at the end, remove them."""
    finder: Any = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        # A fused loss asks peft for a class each time, so peft stays.
        absent = {*ABSENT} - {"peft"}
        for name in [name for name in sys.modules if name.partition(".")[0] in absent]:
            del sys.modules[name]


class FusedLoss(nn.Module):
    """Liger's linear layer and cross entropy in one, in plain torch."""

    def __init__(self, ignore_index: int, reduction: str, **_: Any) -> None:
        super().__init__()
        self.options: Any = {"ignore_index": ignore_index, "reduction": reduction}

    def forward(self, weight_VH: Tensor, hidden_TH: Tensor, labels_T: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden_TH, weight_VH), labels_T, **self.options)


# transformers looks for accelerate and peft only once, and must find neither.
for _name in ("modeling_utils", "models.auto.modeling_auto", "processing_utils"):
    import_module(f"transformers.{_name}")
blocks.install()
flash.give_to_transformers()
with _absent_packages():
    trainer: Any = import_module("twinkle.model.transformers.transformers")
    sharing: Any = import_module("twinkle.model.transformers.strategy.sequence_parallel")
    ring: Any = import_module(f"{sharing.__name__}.zigzag_ring_attn")
    values: Any = import_module("twinkle.model.transformers.value_model")
    losses: Any = import_module("twinkle.loss")
    metrics: Any = import_module("twinkle.metric")
    platforms: Any = import_module("twinkle.utils.platforms")

fused: Any = import_module("twinkle.loss.liger_fused_linear_cross_entropy")
fused._LigerFLCEModule = FusedLoss
platforms.Platform.get_local_device = staticmethod(lambda *_, **__: "cpu")
