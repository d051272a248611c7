"""ring-flash-attn: zigzag rings, and the gathering of keys that Llama 3 was trained with."""
