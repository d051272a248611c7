"""The embedding of tokens is found in models of any kind."""

import pytest
import torch
from torch import Tensor, nn

from harness.recipes.inside import embedded

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
