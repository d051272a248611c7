"""lmms-engine: Ulysses inside its patched Qwens, below either of its trainers."""
