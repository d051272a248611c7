"""yunchang: Ulysses, zigzag rings, and both at once."""
