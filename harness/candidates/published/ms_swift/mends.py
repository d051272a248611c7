"""The release without each of its listed bugs."""

from contextlib import AbstractContextManager
from functools import wraps
from typing import Any
from unittest.mock import patch

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.mending import blocks_get_the_final_result, wrapped


def loss_in_fp32() -> AbstractContextManager[Any]:
    """While this lasts, logits are converted to fp32 for the loss, as on one rank."""
    from harness.candidates.published.ms_swift import library

    released = library.per_token_loss_func_sp

    def loss_func(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        return released(outputs.logits.float(), *args, **kwargs)

    return patch.dict(library.compute_loss.__globals__, per_token_loss_func_sp=loss_func)


def ring_with_final_result() -> AbstractContextManager[Any]:
    from swift.sequence_parallel import zigzag_ring_attn

    return blocks_get_the_final_result(zigzag_ring_attn)


def padding_cut_off() -> AbstractContextManager[Any]:
    """While this lasts, what is gathered of packed pairs is as long as they are, as in SFT."""
    from harness.candidates.published.ms_swift import library, released

    def around(original: Any) -> Any:
        @wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            gathered = original(self, *args, **kwargs)
            if not self.template.padding_free or self.template.sequence_parallel_size == 1:
                return gathered
            length = library.sequence_parallel.real_position_ids.shape[1]
            return tuple(table[:, :length] for table in gathered)

        return call

    return wrapped(released.DPOTrainer, "get_per_token_logps", around)


def counted_from_the_last_token() -> AbstractContextManager[Any]:
    """While this lasts, the columns of answers are counted from before the padding of a share."""
    from harness.candidates.published.ms_swift import library, released

    def around(original: Any) -> Any:
        @wraps(original)
        def call(
            self: Any, model: Any, inputs: Any, batch: Any, kept: int, *args: Any, **k: Any
        ) -> Any:
            if self.template.padding_free:
                return original(self, model, inputs, batch, kept, *args, **k)
            padding = -inputs["input_ids"].shape[1] % library.sequence_parallel.world_size
            tables = original(self, model, inputs, batch, kept + padding, *args, **k)
            return tuple(None if table is None else table[:, :kept] for table in tables)

        return call

    return wrapped(released.GRPOTrainer, "_get_logps_via_sp", around)


def kl_once_for_each_answer() -> AbstractContextManager[Any]:
    """While this lasts, the KL of an answer counts once, though each rank of a sequence has it."""
    from harness.candidates.published.ms_swift import released

    gather = released.reinforced.gather

    def around(original: Any) -> Any:
        @wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            def of_sequences(values: Any) -> Any:
                sp = self.template.sequence_parallel_size
                return gather(values).view(-1, sp, len(values))[:, 0].flatten()

            with patch.object(released.reinforced, "gather", of_sequences):
                return original(self, *args, **kwargs)

        return call

    return wrapped(released.GRPOTrainer, "_compute_advantages", around)


def no_teacher_unless_given() -> AbstractContextManager[Any]:
    """While this lasts, a trainer has a teacher if it was given one."""
    from harness.candidates.published.ms_swift import released

    def around(original: Any) -> Any:
        @wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            original(self, *args, **kwargs)
            self._has_teacher = self._has_teacher_explicit()

        return call

    return wrapped(released.GRPOTrainer, "_setup_teacher", around)


MENDS: dict[str, Mend] = {
    "ring-drops-lse-gradient": ring_with_final_result,
    "loss-in-half": loss_in_fp32,
    "dpo-padding-not-cut": padding_cut_off,
    "grpo-columns-moved-by-padding": counted_from_the_last_token,
    "grpo-kl-of-all-ranks": kl_once_for_each_answer,
    "grpo-takes-a-teacher": no_teacher_unless_given,
}
