"""verl 0.9.1: its attention across ranks and the loss of its current engine."""
