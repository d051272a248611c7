"""The model of a case below axolotl's context manager, and what can be seen of it.

Legend: B rows, S tokens of a row, L those of them that are this rank's, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F
from transformers.loss import loss_utils

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.axolotl import library
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.restored import restored
from harness.case import Case

IGNORED = -100
# A key of a batch that the library cuts like its own: token numbers from one; padding is zero.
TOKENS = "tokens"
FLASH = "flash_attention_2"


class Seen:
    """A model, whose forward emits what it computes."""

    def __init__(self, case: Case, rank: Rank, unseen: tuple[str, ...]) -> None:
        self.case, self.unseen = case, unseen
        self.model = huggingface.build(case, rank.device)
        self.model.set_attn_implementation(FLASH)
        self.emit: Emit = silent
        # Token numbers of the next micro-batch, before it is cut.
        self.tokens_BS = torch.empty(0)
        # Token numbers of the last micro-batch on this rank, after the cut.
        self.tokens_L = torch.empty(0)

    @contextmanager
    def shared(self, rank: Rank, **options: Any) -> Iterator[None]:
        """While it lasts, forwards run as in `axolotl train`; with one rank nothing is shared."""
        number, sharing = self.model.register_forward_pre_hook, ExitStack()
        with ExitStack() as stack:
            stack.callback(number(self._numbered, with_kwargs=True).remove)
            if self.case.sp > 1:
                stack.enter_context(restored())
                stack.enter_context(
                    library.sharing.SequenceParallelContextManager(
                        models=[self.model],
                        context_parallel_size=self.case.sp,
                        gradient_accumulation_steps=self.case.micro_batches,
                        device_mesh=mesh(self.case, rank),
                        **options,
                    )
                )
            stack.callback(number(self._before(sharing), with_kwargs=True).remove)
            stack.callback(sharing.close)
            after = self.model.register_forward_hook(lambda *_: sharing.close())
            stack.callback(after.remove)
            yield

    def _numbered(self, _: Any, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return given, {**named, TOKENS: self.tokens_BS + 1}

    def _before(self, during: ExitStack) -> Callable[..., Any]:
        def before(_: Any, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            self.tokens_L = named.pop(TOKENS).flatten() - 1

            def known(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
                if not key.endswith(self.unseen):
                    self.emit(key, tensor, tokens)

            for key, column in (("ids", "input_ids"), ("positions", "position_ids")):
                if column in named:
                    known(key, named[column].flatten(), self.tokens_L)
            during.enter_context(huggingface.watched(self.model, self.case, known, self.tokens_L))
            functional = SimpleNamespace(pad=F.pad, cross_entropy=self._cross_entropy)
            heard = SimpleNamespace(functional=functional)
            during.enter_context(patch.object(loss_utils, "nn", heard))
            return given, named

        return before

    def _cross_entropy(
        self, logits_V: Tensor, labels: Tensor, ignore_index: int, reduction: str
    ) -> Tensor:
        """Emit the losses of this rank's tokens where transformers computes the loss."""
        emit, tokens, counts = self.emit, self.tokens_L, labels != IGNORED
        nll = F.cross_entropy(
            logits_V.detach(), labels, reduction="none", ignore_index=ignore_index
        )
        emit("labels", labels, tokens)
        emit("nll", nll, tokens)
        loss = F.cross_entropy(logits_V, labels, reduction=reduction, ignore_index=ignore_index)
        # Gradients are averaged over all ranks.
        parts = self.case.ranks * (counts.sum().clamp(min=1) if reduction == "mean" else 1)
        loss.register_hook(lambda grad: emit("weight", grad * counts / parts, tokens))
        return loss


def mesh(case: Case, rank: Rank) -> DeviceMesh:
    """Accelerate's mesh, over the groups that the harness has."""
    ranks = torch.arange(case.ranks).view(case.dp, case.sp)
    groups = [rank.dp, rank.sp]
    return DeviceMesh.from_group(groups, "cpu", ranks, mesh_dim_names=("dp_shard", "cp"))


def parameters(seen: Seen) -> dict[str, nn.Parameter]:
    return huggingface.parameters(seen.model, seen.case)
