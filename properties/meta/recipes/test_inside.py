"""The embedding of tokens, and the outputs by token, are found in models of any kind."""

import pytest
import torch
from torch import Tensor, nn

from harness.recipes.inside import embedded, emitted

IDS = torch.tensor([[3, 1, 2]])


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places, self.tokens = nn.Embedding(4, 2), nn.Embedding(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        places: Tensor = self.places(torch.arange(ids.shape[1]))
        tokens: Tensor = self.tokens(ids)
        return places + tokens


class Named(Plain):
    def get_input_embeddings(self) -> nn.Module:
        return self.tokens


class NamesNone(Plain):
    def get_input_embeddings(self) -> nn.Module:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("model", "seen"), [(Named, IDS), (NamesNone, torch.arange(3)), (Plain, torch.arange(3))]
)
def test_the_named_embedding_is_watched_or_else_the_one_that_is_called_first(
    model: type[Plain], seen: Tensor
) -> None:
    module = model()
    with embedded(module) as calls:
        module(IDS)
    assert [ids.tolist() for ids in calls] == [seen.tolist()]


class NormsHeads(Plain):
    """Norms the heads of tokens, [rows, columns, heads, dim] or [rows, heads, columns, dim]."""

    def __init__(self, heads: int, *, heads_first: bool) -> None:
        super().__init__()
        self.wide, self.norm = nn.Linear(2, 2 * heads), nn.LayerNorm(2)
        self.heads_first = heads_first

    def forward(self, ids: Tensor) -> Tensor:
        wide: Tensor = self.wide(super().forward(ids)).unflatten(-1, (-1, 2))
        normed: Tensor = self.norm(wide.transpose(1, 2) if self.heads_first else wide)
        return normed


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("heads", [2, 3])
def test_an_output_with_heads_before_tokens_is_not_by_token_whatever_their_number(
    heads: int, heads_first: bool
) -> None:
    shapes: dict[str, torch.Size] = {}
    module = NormsHeads(heads, heads_first=heads_first)
    with emitted(module, [IDS], lambda key, out, _tokens: shapes.__setitem__(key, out.shape)):
        module(IDS)
    assert ("norm" in shapes) is not heads_first
    assert "wide" in shapes
