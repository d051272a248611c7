"""Bugs in the layers of other families: sinks, windows, states, images and positions.

Legend: B rows, S columns, L columns of this rank, N heads, H head dim, D width of the model.
"""

from typing import Any

import torch
from torch import Tensor, nn

from harness.candidates.bank import mutant
from harness.candidates.own.shares.images import WithImages
from harness.candidates.own.shares.step import Supervised
from harness.recipes import ulysses


@mutant(
    "B181",
    "verl-project/verl#4551",
    "NovaSky-AI/SkyRL#558",
    needs=("sp>1",),
    named="heads-uncut",
)
class SinksUncut(Supervised):
    """Heads are shared by ranks and sinks are not: every rank has those of the first heads."""

    family = "gpt-oss"

    def attention(self, *given: Any, s_aux: Tensor, **named: Any) -> Any:
        first = s_aux.chunk(self.sp.size())[0]
        return super().attention(*given, s_aux=first.repeat(self.sp.size()), **named)


@mutant("B59", "PrimeIntellect-ai/prime-rl#3397", needs=(), named="parameter-dropped")
class SinksSwallowed(Supervised):
    """A wrapper of attention takes sinks among its other arguments, and does not hand them on."""

    family = "gpt-oss"

    def attention(self, *given: Any, s_aux: Tensor, **named: Any) -> Any:
        del s_aux
        return super().attention(*given, **named)


@mutant("B57c", "huggingface/accelerate#4177", needs=("sp>1",), named="window-ignored")
class WindowIgnored(Supervised):
    """The window of a layer is not handed on to attention over whole rows."""

    family = "mistral"

    def attention(self, *given: Any, sliding_window: int | None = None, **named: Any) -> Any:
        del sliding_window
        return super().attention(*given, **named)


@mutant(
    "B52",
    "huggingface/accelerate#4177",
    "ByteDance-Seed/VeOmni#542",
    "deepspeedai/DeepSpeed#8114",
    needs=("sp>1",),
    named="attention-cut",
)
class StateRestarted(Supervised):
    """Layers with a state run on each rank's columns alone, as if rows began with them."""

    family = "qwen3-next"

    def whole(self, x_BLD: Tensor) -> Tensor:
        # Zeros leave a state as it is at the beginning of a row.
        x_BSD = super().whole(x_BLD)
        own_L = self.order(x_BSD.shape[1]).chunk(self.sp.size())[self.sp.rank()]
        return torch.zeros_like(x_BSD).index_copy(1, own_L, x_BSD[:, own_L])


@mutant("B183", "THUDM/slime#1748", needs=("sp>1",), named="gradient-partial")
class StatesNotSummed(Supervised):
    """The gather of states hands back this rank's piece of its own gradient, not of all ranks'."""

    family = "qwen3-next"

    def whole(self, x_BL: Tensor) -> Tensor:
        return ulysses.gathered(x_BL, 1, self.sp)


@mutant("B186", "verl-project/verl#3735", needs=("sp>1",), named="input-replaced")
class DeepstackUncut(WithImages):
    """Features of images that enter later layers are not cut: all ranks take the first of them."""

    def deep_features(self, of_images: Any, mine: Tensor) -> Tensor:
        return super().deep_features(of_images, torch.arange(len(mine), device=mine.device))


@mutant("B188", "NVIDIA-NeMo/Automodel#2931", needs=(), named="gradient-missing")
class TowerDetached(WithImages):
    """Embeddings are cut in place, which takes a detached copy: the tower learns nothing."""

    def features(self, of_images: Any, mine: Tensor) -> Tensor:
        return super().features(of_images, mine).detach()


@mutant("B189", "modelscope/ms-swift#9189", needs=("sp>1",), named="positions-wrong")
class PositionsOfTheFirst(WithImages):
    """Positions are cut at the boundaries of the first rank, whatever rank takes them."""

    def cut_axes(self, positions_3BS: Tensor) -> Tensor:
        even_3BS = self.even(positions_3BS.movedim(0, 2)).movedim(2, 0)
        return even_3BS[..., : self.labels_BL.shape[1]]


@mutant("B187", "ByteDance-Seed/VeOmni#905", needs=("sp>1",), named="input-replaced")
class IdsJoinedAsRows(WithImages):
    """Ids are gathered along the axis of rows, and features of images are dealt in that order."""

    def patches(self, is_image_BS: Tensor) -> Tensor:
        shards = torch.cat(self.even(is_image_BS).chunk(self.sp.size(), 1))
        number_BL = (shards.flatten().cumsum(0) - 1).view_as(shards).chunk(self.sp.size())
        return number_BL[self.sp.rank()][self.cut(is_image_BS)]


@mutant("B57d", "huggingface/accelerate#4177", needs=(), named="pad-leak")
class PaddingAttended(Supervised):
    """The mask of padding is dropped on the way to attention, which is causal and no more."""

    family = "gemma-3"

    def attention(self, *given: Any, real_RS: Tensor, **named: Any) -> Any:
        return super().attention(*given, real_RS=torch.ones_like(real_RS), **named)


@mutant("B29b", "sgl-project/SpecForge#563", needs=("sp>1",), named="positions-restarted")
class PositionsRestarted(Supervised):
    """Positions are counted on each rank from zero."""

    family = "deepseek-v3"

    def positions(self) -> Tensor:
        places_L = torch.arange(self.labels_BL.shape[1], device=self.labels_BL.device)
        return places_L.expand_as(self.labels_BL)


@mutant(
    "B254",
    "NVIDIA-NeMo/Megatron-Bridge#2656",
    "huggingface/transformers#39408",
    "NVIDIA/Megatron-LM#2771",
    needs=(),
    named="window-ignored",
)
class WindowOneTooWide(Supervised):
    """A window that counts the token itself is handed to a kernel that does not count it."""

    family = "mistral"

    def attention(self, *given: Any, sliding_window: int | None = None, **named: Any) -> Any:
        wider = sliding_window and sliding_window + 1
        return super().attention(*given, sliding_window=wider, **named)


@mutant("B264", "pytorch/torchtitan#2106", needs=("sp>1",), named="parameter-scaled")
class BiasOfEachRank(Supervised):
    """Ranks that add up their parts of attention's output each add the whole bias."""

    family = "gpt-oss"

    def hooks(self, model: Any) -> list[Any]:
        outs = [layer.self_attn.o_proj for layer in model.model.layers]
        return [out.register_forward_hook(self.with_more) for out in outs]

    def with_more(self, out: nn.Linear, _given: Any, made: Tensor) -> Tensor:
        more: Tensor = (self.sp.size() - 1) * out.bias
        return made + more


@mutant("B265", "TensorAuto/OpenTau#179", needs=(), named="parameter-scaled")
class EmbeddingsScaledTwice(Supervised):
    """Embeddings come scaled by the square root of their width, and are scaled by it again."""

    family = "gemma-3"

    def hooks(self, model: Any) -> list[Any]:
        return [model.model.embed_tokens.register_forward_hook(self.scaled)]

    @staticmethod
    def scaled(_embed: Any, _given: Any, x_BLD: Tensor) -> Tensor:
        wide_BLD: Tensor = x_BLD * x_BLD.shape[-1] ** 0.5
        return wide_BLD


LEFT_OUT: dict[str, str] = {
    "B182": "no family here has the mask of images that sees both ways",
    "B199": "rows are padded at their ends, where a shift of all angles of a row changes nothing",
    "B197": "ranks share the sequence and nothing else, so no length is that of two axes",
    "B201": "a race of streams on a GPU, which no batch shows for certain",
}
