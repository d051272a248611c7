"""NeMo Automodel: its training recipe over torch's ring, or over gathered keys of packed rows."""
