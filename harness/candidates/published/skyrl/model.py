"""The released models of a policy and of a critic; they emit what they compute.

Legend: B rows, S columns, A columns of responses, V vocabulary, L tokens of a rank.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel
from transformers.integrations import flash_attention

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.skyrl import library
from harness.candidates.published.wiring.emitting import emitting_inputs, without
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.rows import PADDING
from harness.case import Case


class Policy:
    """The released HFModelWrapper around the model of the case."""

    def __init__(self, case: Case, rank: Rank, *, fused: bool, unpadded: bool) -> None:
        self.case, self.unpadded = case, unpadded
        self.text = huggingface.build(case, rank.device)
        if fused:
            self.text.set_attn_implementation("flash_attention_2")
        self.module = library.wrapper.HFModelWrapper(
            self.text,
            use_flash_attention_2=fused,
            sequence_parallel_size=case.sp,
            remove_microbatch_padding=unpadded,
        )
        self.emit: Emit = silent
        self.tokens_BS: Tensor | None = None
        self._forward = self.module.forward
        self.module.forward = self.forward

    def forward(
        self, sequences: Tensor, actions: int, attention_mask: Tensor, **options: Any
    ) -> Any:
        """Run the released forward, and emit what it computes if token numbers are known."""
        if self.tokens_BS is None:
            return self._forward(sequences, actions, attention_mask, **options)
        with self.emitting(self.tokens_BS, attention_mask):
            return self._forward(sequences, actions, attention_mask, **options)

    def sharing(self, rank: Rank) -> AbstractContextManager[None]:
        return patched(self.text, groups(rank), self.case.sp, of_parent=False)

    @contextmanager
    def emitting(self, tokens_BS: Tensor, attended_BS: Tensor) -> Iterator[None]:
        """While this lasts, emit what one forward computes; backward computes it again, unseen."""
        emit = self.emit
        tokens_BL = own_tokens(self.case, tokens_BS, attended_BS, unpadded=self.unpadded)
        tokens_L = tokens_BL.flatten()
        # A table is as wide as the longest row of all micro-batches and replicas. So it has more
        # padding than the harness expects of shards, and padding is left out.
        shown = slice(None) if self.unpadded else tokens_L != PADDING
        original: Callable[..., Tensor] = library.wrapper.logprobs_from_logits

        def logprobs(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
            log_probs = original(logits, labels, **options)
            emit("labels", labels.flatten(), tokens_L)
            emit("nll", -log_probs.detach().flatten()[shown], tokens_L[shown])
            # Gradients are averaged over all ranks.
            log_probs.register_hook(
                lambda grad: emit("weight", -grad.flatten() / self.case.ranks, tokens_L)
            )
            return log_probs

        with (
            emitting_inputs(self.text, emit, tokens_BL),
            huggingface.watched(self.text, self.case, emit, tokens_L),
            patch.object(library.wrapper, "logprobs_from_logits", logprobs),
        ):
            yield


class Critic:
    """A released critic whose head is that of the case, so that it returns logits.

    As a value it returns the root of twice a token's loss: half of its square is that loss.
    """

    def __init__(self, case: Case, rank: Rank) -> None:
        self.case, self.rank = case, rank
        config = huggingface.config(case, "flash_attention_2")
        base: Any = AutoModel._model_mapping[type(config)]
        critic = library.wrapper._get_critic_model(
            base.__base__,
            base,
            value_head_prefix="lm_head",
            sequence_parallel_size=case.sp,
            remove_microbatch_padding=True,
        )
        self.text = critic(config)
        self.text.lm_head = nn.Linear(config.hidden_size, case.vocab, bias=False)
        if case.tied:
            self.text.lm_head.weight = self.text.model.embed_tokens.weight
        huggingface.load(self.text, case, rank.device)
        self.module = self
        self.emit: Emit = silent
        self.tokens_BS: Tensor | None = None

    def train(self) -> None:
        self.text.train()

    def parameters(self) -> Iterator[nn.Parameter]:
        parameters: Iterator[nn.Parameter] = self.text.parameters()
        return parameters

    def __call__(
        self, sequences: Tensor, num_actions: int, attention_mask: Tensor, **options: Any
    ) -> tuple[Tensor, Any]:
        with self.emitting(attention_mask):
            logits_BAV, output = self.text(
                sequences, num_actions=num_actions, attention_mask=attention_mask, **options
            )
        labels_BA = sequences[:, sequences.shape[1] - num_actions :]
        nll_BA = F.cross_entropy(
            logits_BAV.flatten(0, 1), labels_BA.flatten(), reduction="none"
        ).view_as(labels_BA)
        self.emit_losses(nll_BA.detach(), labels_BA, attention_mask)
        # The root of zero has no finite gradient.
        return (2 * nll_BA.clamp(min=torch.finfo(nll_BA.dtype).tiny)).sqrt(), output

    def sharing(self, rank: Rank) -> AbstractContextManager[None]:
        return patched(self.text, groups(rank), self.case.sp, of_parent=True)

    @contextmanager
    def emitting(self, attended_BS: Tensor) -> Iterator[None]:
        """While this lasts, emit what one forward computes; backward computes it again, unseen."""
        tokens_BL = self.own_tokens(attended_BS)
        with (
            emitting_inputs(self.text, self.emit, tokens_BL),
            huggingface.watched(self.text, self.case, without(self.emit, "logits"), tokens_BL),
        ):
            yield

    def emit_losses(self, nll_BA: Tensor, labels_BA: Tensor, attended_BS: Tensor) -> None:
        """Emit the losses of this rank's tokens; every rank has computed all losses."""
        assert self.tokens_BS is not None
        tokens_L, last = self.own_tokens(attended_BS).flatten(), self.tokens_BS.shape[1] - 1
        predicting = self.tokens_BS[:, last - nll_BA.shape[1] : last].flatten()
        for key, values_BA in (("labels", labels_BA), ("nll", nll_BA)):
            # The last element is that of padding, whose number is -1.
            by_number = values_BA.new_zeros(self.case.tokens + 1)
            by_number[predicting] = values_BA.flatten()
            by_number[PADDING] = 0
            self.emit(key, by_number[tokens_L], tokens_L)

    def own_tokens(self, attended_BS: Tensor) -> Tensor:
        assert self.tokens_BS is not None
        return own_tokens(self.case, self.tokens_BS, attended_BS, unpadded=True)


def own_tokens(case: Case, tokens_BS: Tensor, attended_BS: Tensor, *, unpadded: bool) -> Tensor:
    """Return this rank's token numbers, cut as ids are.

    Meanwhile they count from one, because padding is zero.
    """
    numbers = tokens_BS + 1
    if unpadded:
        column, *_ = library.wrapper.unpad_input(numbers.unsqueeze(-1), attended_BS)
        numbers = column.transpose(0, 1)
    if case.sp > 1:
        numbers, *_ = library.slicing.ulysses_pad_and_slice_inputs(numbers, sp_size=case.sp)
    return numbers - 1


def groups(rank: Rank) -> dict[str, Any]:
    """Return the groups of a rank as a mesh has them."""
    return {"sp": SimpleNamespace(get_group=lambda: rank.sp)}


@contextmanager
def patched(model: Any, mesh: Any, size: int, *, of_parent: bool) -> Iterator[None]:
    """While this lasts, the model is patched as by a worker that has made it."""
    actor = SimpleNamespace(sequence_parallel_size=size, device_mesh=mesh)
    name = "_flash_attention_forward"
    with ExitStack() as undo:
        undo.enter_context(patch.object(flash_attention, name, getattr(flash_attention, name)))
        undo.callback(library.ulysses.set_ulysses_sequence_parallel_group, None)
        library.monkey_patch(actor, model, use_parent_class=of_parent)
        yield
