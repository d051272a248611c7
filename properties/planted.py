"""A candidate that is wrong by less than a bug would be."""

from harness.candidates import Rank
from harness.candidates.native import LocalDialect
from harness.reference.decoder import Decoder


class Strays(LocalDialect):
    """Right but for an error a little larger than fp64 is allowed."""

    name = "strays"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        gradient = dict(model.named_parameters())["layers.0.q"].grad
        assert gradient is not None
        gradient += 5e-12 * gradient.abs().max()


STRAYS = Strays()
