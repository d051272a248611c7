"""axolotl: transformers trainers around the rings of ring-flash-attn."""
