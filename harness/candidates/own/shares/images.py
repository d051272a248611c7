"""A right step for rows with images, whose positions have three axes.

Legend: B rows, S columns, L columns of this rank.
"""

from typing import Any

import torch
from torch import Tensor

from harness.candidates.own.shares.step import Supervised
from harness.recipes import Recipe, images


class WithImages(Supervised):
    """Each rank computes all images of its replica, and takes what its columns show."""

    family, plain, columns = "qwen3-vl", staticmethod(images.supervised), images.COLUMNS

    def recipe_of(self) -> Recipe:
        return Recipe(images.qwen3_vl, self.plain, self.columns)

    def inputs(self, model: Any) -> dict[str, Any]:
        is_image_BS = self.batch["kinds"] > 0
        ids_BS = self.batch["input_ids"].masked_fill(is_image_BS, model.config.image_token_id)
        grids = torch.tensor(
            [(1, 2, count // 2) if count > 1 else (1, 1, 1) for count in is_image_BS.sum(1)],
            device=ids_BS.device,
        )
        # The tower shares no rows; the micro-batch before left it another attention.
        model.set_attn_implementation("eager")
        seen = model.model.get_image_features(self.batch["pixels"][is_image_BS][:, None], grids)
        mine = self.patches(is_image_BS)
        seen.pooler_output = [self.features(seen.pooler_output, mine)]
        seen.deepstack_features = [
            [self.deep_features(layer, mine)] for layer in seen.deepstack_features
        ]
        positions_3BS: Tensor = model.model.get_rope_index(
            ids_BS, is_image_BS.long(), grids, attention_mask=self.batch["attention_mask"]
        )[0]
        return {
            "input_ids": self.cut(ids_BS),
            "position_ids": self.cut_axes(positions_3BS),
            "mm_encoder_outputs": {"image": seen},
        }

    def patches(self, is_image_BS: Tensor) -> Tensor:
        """Return the numbers of the patches in this rank's columns."""
        number_BS = (is_image_BS.flatten().cumsum(0) - 1).view_as(is_image_BS)
        return self.cut(number_BS)[self.cut(is_image_BS)]

    def features(self, of_images: Any, mine: Tensor) -> Tensor:
        return torch.cat(of_images)[mine]

    def deep_features(self, of_images: Any, mine: Tensor) -> Tensor:
        """Return what enters later layers."""
        return self.features(of_images, mine)

    def cut_axes(self, positions_3BS: Tensor) -> Tensor:
        """Return the positions of this rank's columns, on the axes of time, height and width."""
        return self.cut(positions_3BS.movedim(0, 2)).movedim(2, 0)
