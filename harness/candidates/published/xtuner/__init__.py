"""xtuner: Ulysses, with its padding, its cuts and its reduction of the loss."""
