"""The released models of a policy and of a critic, and what can be seen of them while they run.

Legend: B rows, S columns, A columns of responses, V vocabulary, L tokens of a rank.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.rows import PADDING
from harness.case import Case


class Policy:
    """A HFModelWrapper around the model of the case."""

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
        self, sequences: Tensor, actions: int, attention_mask: Tensor, **named: Any
    ) -> Any:
        """The released forward, which emits what it computes where token numbers are known."""
        if self.tokens_BS is None:
            return self._forward(sequences, actions, attention_mask, **named)
        with self.told(self.tokens_BS, attention_mask):
            return self._forward(sequences, actions, attention_mask, **named)

    @contextmanager
    def shared(self, rank: Rank) -> Iterator[None]:
        with patched(self.case, rank, self.text, of_parent=False):
            yield

    @contextmanager
    def told(self, tokens_BS: Tensor, attended_BS: Tensor) -> Iterator[None]:
        """Emit what one forward computes, and not what backward computes once more."""
        emit = self.emit
        tokens_L = local(self.case, tokens_BS, attended_BS, unpadded=self.unpadded).flatten()
        # A table is as wide as the longest row of all micro-batches and replicas, so padding is
        # not shown: there is more of it than the harness expects of shards.
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
            inputs(self.text, emit, tokens_L),
            huggingface.watched(self.text, self.case, emit, tokens_L),
            patch.object(library.wrapper, "logprobs_from_logits", logprobs),
        ):
            yield


class Critic:
    """A released critic whose values are of a vocabulary: its head is that of the case.

    Where a critic has a value, this one has the root of twice the loss of a token, half of whose
    square is that loss.
    """

    def __init__(self, case: Case, rank: Rank) -> None:
        self.case, self.rank = case, rank
        config = huggingface.config(case, "flash_attention_2")
        base: Any = AutoModel._model_mapping[type(config)]
        made = library.wrapper._get_critic_model(
            base.__base__,
            base,
            value_head_prefix="lm_head",
            sequence_parallel_size=case.sp,
            remove_microbatch_padding=True,
        )
        self.text = made(config)
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
        self, sequences: Tensor, num_actions: int, attention_mask: Tensor, **named: Any
    ) -> tuple[Tensor, Any]:
        with self.told(attention_mask):
            logits_BAV, output = self.text(
                sequences, num_actions=num_actions, attention_mask=attention_mask, **named
            )
        labels_BA = sequences[:, sequences.shape[1] - num_actions :]
        nll_BA = F.cross_entropy(
            logits_BAV.flatten(0, 1), labels_BA.flatten(), reduction="none"
        ).view_as(labels_BA)
        self.tell(nll_BA.detach(), labels_BA, attention_mask)
        # The root of nothing has no gradient.
        return (2 * nll_BA.clamp(min=torch.finfo(nll_BA.dtype).tiny)).sqrt(), output

    @contextmanager
    def shared(self, rank: Rank) -> Iterator[None]:
        with patched(self.case, rank, self.text, of_parent=True):
            yield

    @contextmanager
    def told(self, attended_BS: Tensor) -> Iterator[None]:
        """Emit what one forward computes, and not what backward computes once more."""
        tokens_L = self.local(attended_BS)

        def all_but_logits(key: str, tensor: Tensor, tokens: Tensor) -> None:
            if key != "logits":
                self.emit(key, tensor, tokens)

        with (
            inputs(self.text, self.emit, tokens_L),
            huggingface.watched(self.text, self.case, all_but_logits, tokens_L),
        ):
            yield

    def tell(self, nll_BA: Tensor, labels_BA: Tensor, attended_BS: Tensor) -> None:
        """All ranks compute all losses; each shows those of the tokens that it was given."""
        assert self.tokens_BS is not None
        tokens_L, last = self.local(attended_BS), self.tokens_BS.shape[1] - 1
        asked = self.tokens_BS[:, last - nll_BA.shape[1] : last].flatten()
        for key, told_BA in (("labels", labels_BA), ("nll", nll_BA)):
            # The last element is that of padding, whose number is -1.
            by_number = told_BA.new_zeros(self.case.tokens + 1)
            by_number[asked] = told_BA.flatten()
            by_number[PADDING] = 0
            self.emit(key, by_number[tokens_L], tokens_L)

    def local(self, attended_BS: Tensor) -> Tensor:
        assert self.tokens_BS is not None
        return local(self.case, self.tokens_BS, attended_BS, unpadded=True).flatten()


def local(case: Case, tokens_BS: Tensor, attended_BS: Tensor, *, unpadded: bool) -> Tensor:
    """This rank's token numbers, cut as ids are; meanwhile from one, as padding is zero."""
    numbers = tokens_BS + 1
    if unpadded:
        column, *_ = library.wrapper.unpad_input(numbers.unsqueeze(-1), attended_BS)
        numbers = column.transpose(0, 1)
    if case.sp > 1:
        numbers, *_ = library.slicing.ulysses_pad_and_slice_inputs(numbers, sp_size=case.sp)
    return numbers - 1


@contextmanager
def patched(case: Case, rank: Rank, model: Any, *, of_parent: bool) -> Iterator[None]:
    """What a worker does when it has made its model, undone at the end."""
    actor = SimpleNamespace(
        sequence_parallel_size=case.sp,
        device_mesh={"sp": SimpleNamespace(get_group=lambda: rank.sp)},
    )
    name = "_flash_attention_forward"
    with ExitStack() as undone:
        undone.enter_context(patch.object(flash_attention, name, getattr(flash_attention, name)))
        undone.callback(library.ulysses.set_ulysses_sequence_parallel_group, None)
        library.monkey_patch(actor, model, use_parent_class=of_parent)
        yield


@contextmanager
def inputs(model: Any, emit: Emit, tokens_L: Tensor) -> Iterator[None]:
    """Emit ids and positions as they reach the model, cut and padded."""
    handles = (
        model.model.embed_tokens.register_forward_pre_hook(
            lambda _, given: emit("ids", given[0].flatten(), tokens_L)
        ),
        model.model.register_forward_pre_hook(
            lambda _, __, named: emit("positions", named["position_ids"].flatten(), tokens_L),
            with_kwargs=True,
        ),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
