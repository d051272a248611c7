"""Settings of ms-swift's GRPO that cases state.

The release's default comes first, but for `scale_rewards`: its default divides by the deviation of
a pair, which leaves nothing of how far two rewards are apart.
"""

from harness.case.settings import Settings

FAMILIES: Settings = {"family": ("llama", "qwen3", "qwen3-moe")}
SCALES = ("none", "group", "batch")
GRPO: Settings = {
    **FAMILIES,
    "loss_type": ("grpo", "dapo", "dr_grpo", "cispo", "sapo"),
    "importance_sampling_level": ("token", "sequence", "sequence_token"),
    "epsilon_high": (None, 0.28),
    "delta": (None, 1.1),
    "scale_rewards": SCALES,
    "advantage_estimator": ("grpo", "rloo", "reinforce_plus_plus"),
}
# Where the KL is part of rewards, which is the default of these estimators.
RLOO: Settings = {
    **FAMILIES,
    "advantage_estimator": ("rloo", "reinforce_plus_plus"),
    "scale_rewards": SCALES,
}
# The release refuses fipo where there is a teacher, and takes every trainer to have one.
FIPO: Settings = {
    **FAMILIES,
    "delta": (None, 1.1),
    "off_policy_sequence_mask_delta": (None, 0.0005, 0.05),
}
