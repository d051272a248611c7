"""torchtitan: its context parallelism over torch's ring, and its sum over valid tokens."""
