"""A patched Qwen that emits what it computes.

Legend: L tokens of a rank, N those of them that are that predict, H hidden, V vocabulary.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.lmms_engine import library
from harness.candidates.published.wiring.emitting import without
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.rows import IGNORED, Padded
from harness.case import Case

# A further key of a batch; it does not reach the library's model.
PADDED = "padded"

# (the head's weight, hidden states, labels) -> losses
CrossEntropy = Callable[[Tensor, Tensor, Tensor], Tensor]


class Model:
    """The model of a case, as a trainer calls it."""

    def __init__(self, case: Case, rank: Rank, attention: str, *, has_vision: bool) -> None:
        self.case, self.has_vision = case, has_vision
        self.emit: Emit = silent
        if has_vision:
            self.module, self.text = vision_model(case, rank.device)
        else:
            self.module = self.text = huggingface.build(case, rank.device)
        self.module.set_attn_implementation(attention)
        # The library's runner makes the next two calls. Other kernels of Liger are off: they need
        # a GPU and compute the same. So the patch changes nothing of the instance.
        library.ulysses.set_ulysses_sequence_parallel_group(rank.sp)
        library.MONKEY_PATCHER.apply_monkey_patch(
            self.module.config.model_type,
            patch_type=["liger", "rmpad"],
            use_rmpad=True,
            rope=False,
            rms_norm=False,
            swiglu=False,
        )

    def train(self) -> None:
        self.module.train()

    def parameters(self) -> Iterator[Tensor]:
        parameters: Iterator[Tensor] = self.module.parameters()
        return parameters

    def __call__(self, **inputs: Any) -> Any:
        padded: Padded = inputs.pop(PADDED)
        tokens_L = self.own_tokens(padded)
        kept_N = self.predicting_places(padded, inputs["labels"], len(tokens_L))
        # Every rank embeds all tokens, before images take their places and before the cut.
        hidden = ("embed",) if self.has_vision else ()
        emit = without(self.emit, *hidden)

        def emit_tokens(key: str, tensor: Tensor, _: Tensor) -> None:
            # There is no dimension of rows: tokens were flattened with the one behind them.
            emit(key, tensor.unflatten(0, (len(tokens_L), -1)), tokens_L)

        def cross_entropy(weight_VH: Tensor, hidden_NH: Tensor, labels_N: Tensor) -> Tensor:
            logits_NV = F.linear(hidden_NH, weight_VH)
            nll_N = F.cross_entropy(logits_NV.float(), labels_N, reduction="none")
            self.emit_losses(nll_N, labels_N, kept_N, tokens_L)
            return nll_N

        with (
            self.instead_of_liger(cross_entropy),
            huggingface.watched(self.text, self.case, emit_tokens, tokens_L),
        ):
            return self.module(**inputs)

    def emit_losses(
        self, nll_N: Tensor, labels_N: Tensor, kept_N: Tensor, tokens_L: Tensor
    ) -> None:
        """Emit labels, losses and weights of the rank's tokens; those not kept are ignored."""
        emit = self.emit

        def emit_all(key: str, values_N: Tensor, filling: float) -> None:
            values_L = values_N.new_full(tokens_L.shape, filling)
            emit(key, values_L.index_put((kept_N,), values_N), tokens_L)

        emit_all("labels", labels_N, IGNORED)
        emit_all("nll", nll_N.detach(), 0.0)
        # Gradients are averaged over all ranks.
        scale_N = (labels_N != IGNORED) / self.case.ranks
        nll_N.register_hook(lambda grad: emit_all("weight", grad * scale_N, 0.0))

    def own_tokens(self, padded: Padded) -> Tensor:
        """Return this rank's token numbers, cut as ids are.

        Meanwhile they count from one, because padding is zero.
        """
        numbers, *_ = library.packing._unpad_input(padded.tokens_BS + 1, padded.attended_BS)
        if self.case.sp > 1:
            cut = library.ulysses.ulysses_pad_and_slice_inputs
            numbers, *_ = cut(numbers.unsqueeze(0), sp_size=self.case.sp)
        tokens_L: Tensor = numbers.flatten() - 1
        return tokens_L

    def predicting_places(self, padded: Padded, labels: Tensor, length: int) -> Tensor:
        """Return the places of those of the rank's tokens that predict.

        The released forward runs on places instead of hidden states, up to its loss.
        """
        _, word_idx, seq_lens, _ = library.packing._unpad_input(padded.ids_BS, padded.attended_BS)
        places = torch.arange(length)[:, None]
        outputs = library.packing.BaseModelOutputWithPastAndRmpad(
            last_hidden_state=places, seq_lens=seq_lens, word_idx=word_idx
        )
        switches = ("output_attentions", "output_hidden_states", "use_return_dict")
        stand_in = SimpleNamespace(
            config=SimpleNamespace(hidden_size=1, **dict.fromkeys(switches, False)),
            model=lambda **_: outputs,
            training=True,
            lm_head=SimpleNamespace(weight=None),
        )

        def stop_at_loss(_weight: Tensor, places_N1: Tensor, _labels: Tensor) -> NoReturn:
            raise PlacesFoundError(places_N1.squeeze(1))

        try:
            with self.instead_of_liger(stop_at_loss):
                type(self.module).forward(stand_in, labels=labels)
        except PlacesFoundError as error:
            places_N: Tensor = error.args[0]
            return places_N
        raise RuntimeError("the released forward computes no loss")

    def instead_of_liger(self, cross_entropy: CrossEntropy) -> Any:
        """While this lasts, replace Liger's fused head and loss, which are a kernel of a GPU."""

        def make_loss(reduction: str) -> CrossEntropy:
            def loss(weight: Tensor, hidden: Tensor, labels: Tensor) -> Tensor:
                nll = cross_entropy(weight, hidden, labels)
                if reduction == "none":
                    return nll
                # Liger's mean over nothing is zero.
                count = (labels != IGNORED).sum().clamp(min=1)
                return nll.sum() / (count if reduction == "mean" else 1)

            return loss

        module = library.forwards[self.module.config.model_type]
        # If Liger cannot be imported, the module lacks the name.
        return patch.object(module, "LigerFusedLinearCrossEntropyLoss", make_loss, create=True)


def vision_model(case: Case, device: torch.device) -> tuple[Any, Any]:
    """Return a Qwen3-VL without its vision part, and the part with a Qwen3's names and weights."""
    text = huggingface.config(case).to_dict()
    # In texts all three positions are the same, so it does not matter which one a frequency uses.
    text["rope_scaling"] = {"rope_type": "default", "mrope_section": [case.head_dim // 2, 0, 0]}
    config = transformers.Qwen3VLConfig(
        text_config=text,
        vision_config={"depth": 0, "deepstack_visual_indexes": []},
        tie_word_embeddings=case.tied,
    )
    model = transformers.Qwen3VLForConditionalGeneration(config)
    model.model.visual = None
    text_model = nn.Module()
    text_model.model, text_model.lm_head = model.model.language_model, model.lm_head
    vars(text_model)["gradient_checkpointing_enable"] = model.gradient_checkpointing_enable
    return model, huggingface.load(text_model, case, device)


class PlacesFoundError(Exception):
    """Carries places out of the forward that was run to find them."""
