"""A patched Qwen, and what can be seen of it while it runs.

Legend: L tokens of a rank, N those of them that are asked to predict, H hidden, V vocabulary.
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
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.rows import Padded
from harness.case import Case

IGNORED = -100
# A key beside those that a collator makes; it does not reach the library's model.
PADDED = "padded"

# (the head's weight, hidden states, labels) -> losses
CrossEntropy = Callable[[Tensor, Tensor, Tensor], Tensor]


class Model:
    """What a trainer calls and asks about: the model of a case."""

    def __init__(self, case: Case, rank: Rank, attention: str, *, sees: bool) -> None:
        self.case, self.sees = case, sees
        self.emit: Emit = silent
        if sees:
            self.module, self.text = seeing(case, rank.device)
        else:
            self.module = self.text = huggingface.build(case, rank.device)
        self.module.set_attn_implementation(attention)
        # Its runner does both. What else Liger replaces is off: it needs a GPU and computes the
        # same. So the patch changes nothing of the instance.
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

    def __call__(self, **given: Any) -> Any:
        padded: Padded = given.pop(PADDED)
        tokens_L, emit = self.tokens(padded), self.emit
        kept_N = self.kept(padded, given["labels"], len(tokens_L))

        def seen(key: str, tensor: Tensor, _: Tensor) -> None:
            if self.sees and key == "embed":
                # Every rank embeds all tokens, before images take their places and a cut.
                return
            # There is no dim of rows: tokens were flattened with the dim behind them.
            emit(key, tensor.unflatten(0, (len(tokens_L), -1)), tokens_L)

        def cross_entropy(weight_VH: Tensor, hidden_NH: Tensor, labels_N: Tensor) -> Tensor:
            logits_NV = F.linear(hidden_NH, weight_VH)
            nll_N = F.cross_entropy(logits_NV.float(), labels_N, reduction="none")
            self.tell(nll_N, labels_N, kept_N, tokens_L)
            return nll_N

        with (
            self.instead_of_liger(cross_entropy),
            huggingface.watched(self.text, self.case, seen, tokens_L),
        ):
            return self.module(**given)

    def tell(self, nll_N: Tensor, labels_N: Tensor, kept_N: Tensor, tokens_L: Tensor) -> None:
        """Emit labels and losses of all the rank's tokens; tokens left out count as ignored."""

        def told(key: str, told_N: Tensor, filling: float) -> None:
            whole_L = told_N.new_full(tokens_L.shape, filling)
            emit(key, whole_L.index_put((kept_N,), told_N), tokens_L)

        emit = self.emit
        told("labels", labels_N, IGNORED)
        told("nll", nll_N.detach(), 0.0)
        # Gradients are averaged over all ranks.
        scale_N = (labels_N != IGNORED) / self.case.ranks
        nll_N.register_hook(lambda grad: told("weight", grad * scale_N, 0.0))

    def tokens(self, padded: Padded) -> Tensor:
        """This rank's token numbers, cut as ids are; meanwhile from one, as padding is zero."""
        numbers, *_ = library.packing._unpad_input(padded.tokens_BS + 1, padded.attended_BS)
        if self.case.sp > 1:
            cut = library.ulysses.ulysses_pad_and_slice_inputs
            numbers, *_ = cut(numbers.unsqueeze(0), sp_size=self.case.sp)
        mine: Tensor = numbers.flatten() - 1
        return mine

    def kept(self, padded: Padded, labels: Tensor, length: int) -> Tensor:
        """The places of a rank's tokens that are asked to predict.

        The released forward runs on places instead of hidden states, up to its loss.
        """
        _, word_idx, seq_lens, _ = library.packing._unpad_input(padded.ids_BS, padded.attended_BS)
        places = torch.arange(length)[:, None]
        outputs = library.packing.BaseModelOutputWithPastAndRmpad(
            last_hidden_state=places, seq_lens=seq_lens, word_idx=word_idx
        )
        named = ("output_attentions", "output_hidden_states", "use_return_dict")
        stand_in = SimpleNamespace(
            config=SimpleNamespace(hidden_size=1, **dict.fromkeys(named, False)),
            model=lambda **_: outputs,
            training=True,
            lm_head=SimpleNamespace(weight=None),
        )

        def found(_weight: Tensor, places_N1: Tensor, _labels: Tensor) -> NoReturn:
            raise Found(places_N1.squeeze(1))

        try:
            with self.instead_of_liger(found):
                type(self.module).forward(stand_in, labels=labels)
        except Found as there:
            places_N: Tensor = there.args[0]
            return places_N
        raise RuntimeError("the released forward computes no loss")

    def instead_of_liger(self, cross_entropy: CrossEntropy) -> Any:
        """Put this in the place of Liger's fused head and loss, which are a kernel of a GPU."""

        def made(reduction: str) -> CrossEntropy:
            def loss(weight: Tensor, hidden: Tensor, labels: Tensor) -> Tensor:
                nll = cross_entropy(weight, hidden, labels)
                if reduction == "none":
                    return nll
                # Liger's mean over nothing is zero.
                count = (labels != IGNORED).sum().clamp(min=1)
                return nll.sum() / (count if reduction == "mean" else 1)

            return loss

        module = library.forwards[self.module.config.model_type]
        # Where Liger cannot be imported the module lacks the name.
        return patch.object(module, "LigerFusedLinearCrossEntropyLoss", made, create=True)


def seeing(case: Case, device: torch.device) -> tuple[Any, Any]:
    """A Qwen3-VL without its vision model, and the part of it with a Qwen3's names and weights."""
    text = huggingface.config(case).to_dict()
    # In texts all three positions are the same, whichever a frequency takes.
    text["rope_scaling"] = {"rope_type": "default", "mrope_section": [case.head_dim // 2, 0, 0]}
    config = transformers.Qwen3VLConfig(
        text_config=text,
        vision_config={"depth": 0, "deepstack_visual_indexes": []},
        tie_word_embeddings=case.tied,
    )
    model = transformers.Qwen3VLForConditionalGeneration(config)
    model.model.visual = None
    part = nn.Module()
    part.model, part.lm_head = model.model.language_model, model.lm_head
    vars(part)["gradient_checkpointing_enable"] = model.gradient_checkpointing_enable
    return model, huggingface.load(part, case, device)


class Found(Exception):
    """Carries places out of the forward that was run for them."""
