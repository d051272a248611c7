"""trl: its SFTTrainer under accelerate's context parallelism, over FSDP2."""
