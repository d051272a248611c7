"""Steps for rows with images and positions of three axes, with one fault each.

`images.py:right` is right; `images.py:positions_of_text` has that fault.

Legend: B rows, S columns, L columns of this rank.
"""

from typing import Any

import torch
from torch import Tensor

from harness.candidates.own.mutants import BANK
from harness.candidates.own.shares import step_of
from harness.candidates.own.shares.images import WithImages
from properties.planted import any_model


class PositionsOfText(WithImages):
    def cut_axes(self, positions_3BS: Tensor) -> Tensor:
        return super().cut_axes(self.batch["position_ids"].expand_as(positions_3BS))


class PositionsOfAShard(WithImages):
    def cut_axes(self, positions_3BS: Tensor) -> Tensor:
        mine_3BL = super().cut_axes(positions_3BS)
        return mine_3BL - mine_3BL[..., :1]


class AxesSwapped(WithImages):
    def cut_axes(self, positions_3BS: Tensor) -> Tensor:
        return super().cut_axes(positions_3BS[[0, 2, 1]])


class FeaturesUncut(WithImages):
    def features(self, of_images: Any, mine: Tensor) -> Tensor:
        return super().features(of_images, torch.arange(len(mine), device=mine.device))

    def deep_features(self, of_images: Any, mine: Tensor) -> Tensor:
        return super().features(of_images, mine)


FAULTS: dict[str, type] = any_model.FAULTS | {
    "positions_of_text": PositionsOfText,
    "positions_of_a_shard": PositionsOfAShard,
    "positions_first_cut": type(BANK["B189"].candidate),
    "axes_swapped": AxesSwapped,
    "features_uncut": FeaturesUncut,
    "deepstack_uncut": type(BANK["B186"].candidate),
}


def __getattr__(name: str) -> Any:
    """Return the step that is `right`, or one with the fault of this name."""
    if name not in {"right", *FAULTS}:
        raise AttributeError(name)
    return step_of(WithImages.trains(), *([] if name == "right" else [FAULTS[name]]))
