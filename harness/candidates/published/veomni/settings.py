"""Settings of veomni's trainers that cases state: the release's default comes first."""

from harness.case.settings import Settings

# The longest micro-batch with `pad_to_length`; no number of ranks divides it.
LONGEST = 61

FAMILIES: Settings = {"family": ("qwen3", "llama", "qwen3-moe")}
DPO: Settings = {
    **FAMILIES,
    "loss_type": ("sigmoid", "ipo"),
    "beta": (0.1, 0.5),
    "label_smoothing": (0.0, 0.1),
    "reference_free": (False, True),
    "average_log_prob": (False, True),
}
# How a trainer trains.
TRAINING: Settings = {"gradient_checkpointing": (True, False), "pad_to_length": (False, True)}
# The default, a kernel for GPUs, stays out.
SUPERVISED: Settings = {
    **TRAINING,
    "fsdp_mode": ("fsdp2", "ddp"),
    "cross_entropy_loss_implementation": ("eager", "chunk_loss"),
}
