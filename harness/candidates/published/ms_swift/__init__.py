"""ms-swift's sequence parallelism and the loss of its SFT trainer, wired as candidates."""
