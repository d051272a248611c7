"""transformers: its Trainer under accelerate's context parallelism, over FSDP2."""
