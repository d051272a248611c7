"""Settings of trainers that recipes judge, as cases state them: the default comes first."""

from harness.case.settings import Settings

FAMILIES: Settings = {"family": ("llama", "qwen3")}
# `context_parallel.shard_in_collator`.
CUTS: Settings = {"shard_in_collator": (True, False)}
# What TRL's GRPO takes, and EBFT passes on to it. `cispo` reads `epsilon_high` as a whole bound.
EBFT: Settings = {
    **FAMILIES,
    "loss_type": ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "luspo"),
    "scale_rewards": ("group", "none"),
    "beta": (0.0, 0.1),
    "temperature": (1.0, 0.8),
}
