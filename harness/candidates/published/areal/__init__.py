"""areal: Ulysses under FSDP2, as its engine for supervised training does it."""
