"""NeMo Automodel: torch's ring, or packed rows over gathered keys, below its training recipe."""
