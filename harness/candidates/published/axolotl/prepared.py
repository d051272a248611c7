"""What steps that recipes judge have in common: rows, a tokenizer, and one step of `train()`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.axolotl.training import config, sharing
from harness.candidates.published.wiring import trainer
from harness.recipes.batch import Batch

# A ring of it has no backward, and Ulysses takes it in any dtype.
ATTENTION = "sdpa"


def rows_of(batch: Batch, name: str) -> list[Tensor]:
    """Return what each row has in a column, without padding, in the order of the rows."""
    places = batch["row"].argsort().tolist()
    if batch[name].ndim == 1:
        return [batch[name][place] for place in places]
    return [batch[name][place][batch["attention_mask"][place].bool()] for place in places]


def tokenizer(vocab: int, pad_id: int, *, side: str = "right") -> Any:
    """Return a tokenizer with a word for each id and the id of padding."""
    words = {str(token): token for token in range(vocab)}
    fast: Any = transformers.PreTrainedTokenizerFast
    words_only = Tokenizer(WordLevel(words, unk_token="0"))  # noqa: S106 - a word
    return fast(tokenizer_object=words_only, pad_token=str(pad_id), padding_side=side)


def arguments(mesh: DeviceMesh, rows: int) -> dict[str, Any]:
    """Return the arguments of one step; `average_tokens_across_devices` is as released."""
    dp, sp = mesh.shape
    return trainer.one_step(dp, sp) | {
        "per_device_train_batch_size": rows,
        "average_tokens_across_devices": False,
        "gradient_checkpointing": False,
        "bf16": False,
    }


@contextmanager
def made_for(model: Any, mesh: DeviceMesh) -> Iterator[None]:
    """While this lasts, a trainer of this model can be made."""
    model.set_attn_implementation(ATTENTION)
    with trainer.several_ranks(mesh.size()):
        yield


def step(
    made: Any, model: nn.Module, mesh: DeviceMesh, options: Any, **more: Any
) -> dict[str, float]:
    """Run one step of a trainer under the plugin -> what it logs; gradients stay in the model."""
    gradients: dict[str, Tensor | None] = {}
    made.add_callback(trainer.before_optimizer(lambda: gradients.update(left_in(made.model))))
    made.remove_callback(transformers.PrinterCallback)
    written = config(mesh.shape[1], ATTENTION, options, gradient_accumulation_steps=1, **more)
    with sharing(written, made):
        made.train()
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    return next(logged for logged in made.state.log_history if "loss" in logged)


def left_in(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}
