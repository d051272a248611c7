"""axolotl: its trainer, with context parallelism by its own package ringmaster."""
