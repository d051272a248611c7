"""Megatron-Core: its GPT cut over ranks, its loss over micro-batches and its data parallelism."""
