"""Qwen3-VL, whose rows begin with an image and whose positions have three axes.

A patch is one number, and each patch becomes one token. Use it as
`Recipe(images.qwen3_vl, images.supervised, images.COLUMNS)`.

Legend: B rows, S columns, V vocabulary, P patches.
"""

from typing import Any

import torch
from torch import Tensor, nn

from harness.case import Case
from harness.huggingface import sizes
from harness.recipes.batch import Batch
from harness.recipes.columns import Column, computed, token
from harness.recipes.losses import mean, picked


def qwen3_vl(case: Case) -> nn.Module:
    """Build the model; the id of an image is the one after those of text."""
    import transformers

    frequencies = case.head_dim // 2
    height, width = (frequencies + 1) // 3, frequencies // 3
    sections = [frequencies - height - width, height, width]
    text = sizes(case) | {
        "vocab_size": case.vocab + 1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": sections,
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_heads": 2,
        "in_channels": 1,
        "patch_size": 1,
        "temporal_patch_size": 1,
        "spatial_merge_size": 1,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
        "out_hidden_size": case.heads * case.head_dim,
    }
    given: dict[str, Any] = {
        "text_config": text,
        "vision_config": vision,
        "image_token_id": case.vocab,
        "tie_word_embeddings": case.tied,
        "attn_implementation": "sdpa" if case.kernel == "sdpa" else "eager",
    }
    config = transformers.Qwen3VLConfig(**given)
    model: nn.Module = transformers.Qwen3VLForConditionalGeneration(config)
    return model


def kinds(_model: Any, batch: Batch) -> Tensor:
    """One for each token of an image of two rows of up to three patches, in a short row of one."""
    length_B1 = batch["attention_mask"].sum(1, keepdim=True)
    patches_B1 = (length_B1 // 2 - 1).clamp(1, 3) * (1 + (length_B1 >= 4))
    return batch["attention_mask"] * (batch["position_ids"] < patches_B1)


COLUMNS: dict[str, Column] = {"pixels": token(), "kinds": computed(kinds)}


def logits(model: Any, batch: Batch) -> Tensor:
    """What the model says of each token's successor -> BSV."""
    is_image_BS = batch["kinds"].bool()
    patches_B = is_image_BS.sum(1)
    heights_B = 1 + (patches_B > 1).long()
    out = model(
        input_ids=batch["input_ids"].masked_fill(is_image_BS, model.config.image_token_id),
        attention_mask=batch["attention_mask"],
        mm_token_type_ids=is_image_BS.long(),
        pixel_values=batch["pixels"][is_image_BS][:, None],
        image_grid_thw=torch.stack((heights_B**0, heights_B, patches_B // heights_B), 1),
        use_cache=False,
    )
    logits_BSV: Tensor = out.logits
    return logits_BSV


def supervised(model: Any, batch: Batch) -> Tensor:
    """Cross entropy, averaged over all targets."""
    return -mean(picked(logits(model, batch), batch["labels"]), batch)
