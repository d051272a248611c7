"""twinkle's `TransformersModel` around a model that is there."""

from types import SimpleNamespace
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup

from harness.candidates.published.twinkle import library

TransformersModel: Any = library.trainer.TransformersModel


class Exact(float):
    """A number that is logged with every digit."""

    def __add__(self, other: float) -> "Exact":
        return Exact(float(self) + other)

    __radd__ = __add__

    def __truediv__(self, other: float) -> "Exact":
        return Exact(float(self) / other)

    def __format__(self, _spec: str) -> str:
        return repr(float(self))


class Released(TransformersModel):  # type: ignore[misc]
    """The released class, whose constructor would load a model and have accelerate wrap it."""

    # The library sets it where ranks share a sequence.
    sp_strategy: Any = None

    def __init__(
        self, model: Any, loss: Any, world: ProcessGroup, *, sp: int, pad_id: int, **options: Any
    ) -> None:
        nn.Module.__init__(self)
        self.model, self.hf_config = model, model.config
        self.mixed_precision = "no"
        self.device_mesh = library.sharing.DeviceMesh.from_sizes(
            dp_size=world.size(), ulysses_size=sp
        )
        self.strategy = SimpleNamespace(
            capture_pre_ep_state_if_needed=lambda *_, **__: None,
            wrap_model=lambda model: model,
            unwrap_model=lambda model: model,
        )
        self._model_wrapped = self._enable_expert_parallel = False
        self._enable_sp, self.tokenizer_id = sp > 1, None
        self._ensure_sp_strategy()
        if self.sp_strategy is not None:
            self.sp_strategy._tokenizer = SimpleNamespace(pad_token_id=pad_id)
        self.group: Any = library.trainer.OptimizerGroup(
            loss_instance=loss,
            processor=library.trainer.InputProcessor(**options),
            # The library would make a group of all ranks of the process group.
            _dp_group=world,
            _device_mesh=self.device_mesh,
        )
        # Only its first step takes one micro-batch more than it should.
        self.group.cur_step = 1
        self.optimizer_group = {"": self.group}
        self.active_group = ""
        self._lazy_wrap_model()
