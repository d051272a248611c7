"""Columns of a recipe's rows that ranks hold in another order, and other fillings of gaps.

Legend: B rows, S columns, L columns of this rank.
"""

from math import lcm
from typing import Any

from torch import Tensor

from harness.candidates.bank import benign
from harness.candidates.own.shares.layouts import Striped, Zigzag
from harness.candidates.own.shares.losses import (
    Balanced,
    BalancedZ,
    Distilled,
    Dpo,
    Gspo,
    PpoActor,
)
from harness.candidates.own.shares.step import Supervised


@benign("zigzag-columns", looks_like="B184, pieces put together in another order")
class ZigzagColumns(Zigzag):
    """Each rank holds a piece of a row's front and its mirror; layers with a state sort them."""

    family = "qwen3-next"


@benign("striped-columns", looks_like="B190, positions of other columns than a rank holds")
class StripedColumns(Striped):
    """Columns are dealt to ranks in turn; windows and sinks know the place of each."""

    family = "gpt-oss"


@benign(
    "zigzag-advantages", looks_like="B153, advantages of columns that were put together wrongly"
)
class ZigzagAdvantages(Zigzag, PpoActor):
    """Rewards and values of a front and its mirror are sorted before advantages are computed."""


@benign("striped-pairs", looks_like="B224, pairs of other rows")
class StripedPairs(Striped, Dpo):
    """Columns of both rows of a pair are dealt to ranks in turn."""


@benign("columns-reversed", looks_like="B31, a shard cut by another rank's number")
class ColumnsReversed(Gspo):
    """The first rank holds the end of every row, and the last rank its beginning."""

    def order(self, columns: int) -> Tensor:
        return super().order(columns).view(self.sp.size(), -1).flip(0).flatten()


@benign("columns-beyond-the-longest", looks_like="B177, padding that a loss counts")
class ColumnsBeyondTheLongest(BalancedZ):
    """Rows are padded until they are cut into pieces twice as many as there are ranks."""

    def pieces(self) -> int:
        return 2 * self.sp.size()


@benign("columns-to-sixteen", looks_like="B157, columns that are counted and hold no target")
class ColumnsToSixteen(Distilled):
    """Rows are padded until sixteen columns, and ranks, divide them."""

    def pieces(self) -> int:
        return lcm(16, self.sp.size())


@benign(
    "padding-of-another-id", looks_like="B177, padding that goes through a router like a token"
)
class PaddingOfAnotherId(Balanced):
    """Padding has the id of a token, and goes through the router, which does not count it."""

    def inputs(self, model: Any) -> dict[str, Any]:
        inputs = super().inputs(model)
        is_padding_BL = ~self.is_routed()
        return inputs | {"input_ids": inputs["input_ids"].masked_fill(is_padding_BL, 1)}


@benign("padding-far-away", looks_like="positions outside of every row")
class PaddingFarAway(Supervised):
    """Every pad token has the same large position, behind all tokens of its row."""

    family = "gemma-3"

    def positions(self) -> Tensor:
        is_padding_BL = self.cut(self.batch["attention_mask"]) == 0
        return super().positions().masked_fill(is_padding_BL, 100)


@benign(
    "rows-reversed-in-a-replica", looks_like="B11, rows in another order than they are put back"
)
class RowsReversedInAReplica(Supervised):
    """The last row of a micro-batch comes first, with all that belongs to it."""

    family = "qwen3"

    def look_at(self, batch: dict[str, Tensor]) -> None:
        super().look_at({name: table.flip(0) for name, table in batch.items()})
