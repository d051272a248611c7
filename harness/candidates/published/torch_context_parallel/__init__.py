"""torch: its own `context_parallel`, which other trainers build on."""
