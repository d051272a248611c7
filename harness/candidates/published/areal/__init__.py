"""areal: Ulysses under FSDP2 in its engines for supervised training, actors and critics."""
