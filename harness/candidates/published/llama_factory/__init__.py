"""LLaMA-Factory's second trainer with its Ulysses, wired as candidates."""
