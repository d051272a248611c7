"""The released trainer below the released plugin; it emits what it computes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.axolotl import library
from harness.candidates.published.wiring.emitting import emit_inputs
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.restored import restored
from harness.candidates.published.wiring.trainer import TOKENS, Batch, EmittingTrainer
from harness.case import Case


class Emitting(EmittingTrainer):
    """A mixin that learns token numbers where the model is called, behind the library's cut."""

    def start(self: Any, case: Case, rank: Rank, emit: Emit) -> None:
        super().start(case, rank, emit)
        self.during_forward = ExitStack()
        # Hooks of the library come first.
        self.model.register_forward_pre_hook(self.before_forward, with_kwargs=True)
        self.model.register_forward_hook(lambda *_: self.during_forward.close())

    def _prepare_context_parallel_inputs(
        self: Any, model: Any, inputs: Batch
    ) -> tuple[Any, Batch]:
        # Not by the mixin above, which cuts the numbers here.
        above: Any = super(EmittingTrainer, self)
        prepared: tuple[Any, Batch] = above._prepare_context_parallel_inputs(model, inputs)
        return prepared

    def compute_loss(self: Any, model: Any, inputs: Batch, *args: Any, **kwargs: Any) -> Any:
        # Not by the mixin above, which knows the numbers before the model is called.
        above: Any = super(EmittingTrainer, self)
        return above.compute_loss(model, inputs, *args, **kwargs)

    def before_forward(
        self: Any, model: Any, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Take the numbers out, and watch the forward of a step that is judged."""
        kwargs = dict(kwargs)
        self.tokens = kwargs.pop(TOKENS) - 1
        emit = self.step_emit
        if emit is not silent:
            emit_inputs(emit, kwargs, self.tokens.flatten())
            self.during_forward.enter_context(self.emitting_layers(model, emit))
            self.during_forward.enter_context(self.emitting_losses(model, kwargs, emit))
        return args, kwargs


def config(sp: int, attention: str, options: Any, **more: Any) -> Any:
    """Return what the plugin reads of a configuration; `options` are those of its own block."""
    written = {"context_parallel_size": sp, "context_parallel": options}
    return library.Config(
        # What a user writes is checked and completed as by the released schema.
        **library.arguments.ContextParallelArgs.model_validate(written).model_dump(),
        context_parallel_size=sp,
        attn_implementation=attention,
        micro_batch_size=1,
        **more,
    )


@contextmanager
def sharing(config: Any, trainer: Any) -> Iterator[None]:
    """While this lasts, the plugin is set up as by `axolotl train`."""
    plugin = library.context_parallel.ContextParallelPlugin()
    with restored():
        plugin.pre_model_load(config)
        plugin.post_trainer_create(config, trainer)
        try:
            yield
        finally:
            plugin.post_train_unload(config)
