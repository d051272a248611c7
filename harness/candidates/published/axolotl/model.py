"""The model of a case below axolotl's context manager; it emits what it computes.

Legend: B rows, S tokens of a row, L tokens of this rank, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.loss import loss_utils

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.axolotl import library
from harness.candidates.published.wiring.emitting import emit_inputs, emit_losses, without
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.meshes import mesh
from harness.candidates.published.wiring.restored import restored
from harness.candidates.published.wiring.rows import IGNORED
from harness.case import Case

# A key of a batch that the library cuts like its own: token numbers from one; padding is zero.
TOKENS = "tokens"
FLASH = "flash_attention_2"


class Model:
    """A model whose forward emits what it computes, but for keys with a `hidden` ending."""

    def __init__(self, case: Case, rank: Rank, hidden: tuple[str, ...]) -> None:
        self.case, self.hidden = case, hidden
        self.module = huggingface.build(case, rank.device)
        self.module.set_attn_implementation(FLASH)
        self.emit: Emit = silent
        # Token numbers of the next micro-batch, before it is cut.
        self.tokens_BS = torch.empty(0)
        # Token numbers of the last micro-batch on this rank, after the cut.
        self.tokens_L = torch.empty(0)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return huggingface.parameters(self.module, self.case)

    @contextmanager
    def sharing(self, rank: Rank, **options: Any) -> Iterator[None]:
        """While this lasts, forwards run as in `axolotl train`; one rank shares nothing.

        Hooks of ours stand before and behind those of the library, which cut the inputs.
        """
        add_hook, during_forward = self.module.register_forward_pre_hook, ExitStack()
        with ExitStack() as stack:
            stack.callback(add_hook(self._add_tokens, with_kwargs=True).remove)
            if self.case.sp > 1:
                stack.enter_context(restored())
                stack.enter_context(
                    library.sharing.SequenceParallelContextManager(
                        models=[self.module],
                        context_parallel_size=self.case.sp,
                        gradient_accumulation_steps=self.case.micro_batches,
                        device_mesh=mesh(self.case, rank, ("dp_shard", "cp")),
                        **options,
                    )
                )
            stack.callback(add_hook(self._before(during_forward), with_kwargs=True).remove)
            stack.callback(during_forward.close)
            after = self.module.register_forward_hook(lambda *_: during_forward.close())
            stack.callback(after.remove)
            yield

    def _add_tokens(self, _: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, TOKENS: self.tokens_BS + 1}

    def _before(self, during_forward: ExitStack) -> Callable[..., Any]:
        def before(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            self.tokens_L = kwargs.pop(TOKENS).flatten() - 1
            emit = without(self.emit, *self.hidden)
            emit_inputs(emit, kwargs, self.tokens_L)
            during_forward.enter_context(
                huggingface.watched(self.module, self.case, emit, self.tokens_L)
            )
            functional = SimpleNamespace(pad=F.pad, cross_entropy=self._cross_entropy)
            nn_of_losses = SimpleNamespace(functional=functional)
            during_forward.enter_context(patch.object(loss_utils, "nn", nn_of_losses))
            return args, kwargs

        return before

    def _cross_entropy(
        self, logits_V: Tensor, labels: Tensor, ignore_index: int, reduction: str
    ) -> Tensor:
        """Compute the loss of transformers, and emit the losses of this rank's tokens."""
        emit, tokens, counts = self.emit, self.tokens_L, labels != IGNORED
        nll = F.cross_entropy(
            logits_V.detach(), labels, reduction="none", ignore_index=ignore_index
        )
        emit_losses(emit, nll, labels, tokens)
        loss = F.cross_entropy(logits_V, labels, reduction=reduction, ignore_index=ignore_index)
        # Gradients are averaged over all ranks.
        parts = self.case.ranks * (counts.sum().clamp(min=1) if reduction == "mean" else 1)
        loss.register_hook(lambda grad: emit("weight", grad * counts / parts, tokens))
        return loss
