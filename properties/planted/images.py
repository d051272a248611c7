"""One Ulysses step for rows with images and positions of three axes, and its faults.

`images.py:right` is right; `images.py:positions_of_text` has that fault.

Legend: B rows, S columns, L columns of this rank.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.recipes import Recipe, images, step
from properties.planted import shard_losses
from properties.planted.any_model import train
from properties.planted.shard import Shard


class WithImages(Shard):
    """Each rank computes all images of its replica, and takes what its columns show."""

    def inputs(self, model: Any) -> dict[str, Any]:
        batch = self.batch
        is_image_BS = batch["kinds"] > 0
        ids_BS = torch.where(is_image_BS, model.config.image_token_id, batch["input_ids"])
        counts = is_image_BS.sum(1).tolist()
        grids = torch.tensor(
            [(1, 2, count // 2) if count > 1 else (1, 1, 1) for count in counts],
            device=ids_BS.device,
        )
        seen = model.model.get_image_features(batch["pixels"][is_image_BS][:, None], grids)
        number_BS = (is_image_BS.flatten().cumsum(0) - 1).view_as(is_image_BS)
        is_mine_BL = self.cut(is_image_BS)
        mine = self.cut(number_BS)[is_mine_BL]
        first = torch.arange(len(mine), device=mine.device)
        seen.pooler_output = [
            torch.cat(seen.pooler_output)[first if self.fault == "features_uncut" else mine]
        ]
        seen.deepstack_features = [
            [torch.cat(layer)[first if self.fault == "deepstack_uncut" else mine]]
            for layer in seen.deepstack_features
        ]
        positions_3BS = self._positions(model, ids_BS, is_image_BS, grids)
        return {
            "input_ids": self.cut(ids_BS),
            "position_ids": positions_3BS,
            "mm_encoder_outputs": {"image": seen},
        }

    def _positions(self, model: Any, ids_BS: Tensor, is_image_BS: Tensor, grids: Tensor) -> Tensor:
        """Positions of this rank's columns, on the axes of time, height and width."""
        text_BS = self.batch["position_ids"]
        real_BS = self.batch["attention_mask"]
        positions_3BS: Tensor = model.model.get_rope_index(
            ids_BS, is_image_BS.long(), grids, attention_mask=real_BS
        )[0]
        if self.fault == "positions_of_text":
            positions_3BS = text_BS.expand_as(positions_3BS)
        if self.fault == "axes_swapped":
            positions_3BS = positions_3BS[[0, 2, 1]]
        # The cut is along dim 1, which is that of rows where axes come first.
        mine_3BL = self.cut(positions_3BS.movedim(0, 2)).movedim(2, 0)
        if self.fault == "positions_first_cut":
            mine_3BL = self.even(positions_3BS.movedim(0, 2)).movedim(2, 0)
            mine_3BL = mine_3BL[..., : self.cut(text_BS).shape[1]]
        if self.fault == "positions_of_a_shard":
            mine_3BL = mine_3BL - mine_3BL[..., :1]
        return mine_3BL


def __getattr__(name: str) -> Any:
    """Return the step that is `right`, or one with the fault of this name."""
    if name.startswith("_"):
        raise AttributeError(name)
    taken = partial(train, loss=shard_losses.supervised, fault=name, shard=WithImages)
    taken.__name__ = name  # type: ignore[attr-defined]
    return step(Recipe(images.qwen3_vl, images.supervised, images.COLUMNS))(taken)
