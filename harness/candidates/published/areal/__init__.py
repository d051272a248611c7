"""areal: Ulysses under FSDP2 in its engine for supervised training."""
