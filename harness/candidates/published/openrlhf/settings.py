"""Settings of OpenRLHF's trainers that cases state: the release's default comes first."""

from typing import Any

from harness.case.settings import Settings

# DeepSeek's keys are longer than its values, which the ring gathers into one buffer, and raises.
# Gemma 3 has windows, of which a listed bug is.
FAMILIES: Settings = {"family": ("llama", "qwen3", "qwen3-moe")}
# How each trainer runs, of which plain training knows nothing.
TRAINING: Settings = {
    "packing_samples": (True, False),
    "gradient_checkpointing": (False, True),
}
REWARDING: Settings = {**TRAINING, "compute_fp32_loss_enable": (False, True)}
REINFORCING: Settings = {**TRAINING, "dynamic_batch_enable": (False, True)}
# `is_correction_*` by a name for each; bounds are so tight that they bite.
CORRECTIONS: dict[str, dict[str, Any]] = {
    "off": {},
    "tis": {"level": "token", "mode": "clip", "threshold": (0.95, 1.05)},
    "icepop": {"level": "token", "threshold": (0.95, 1.05)},
    "seq-mask-tis": {"level": "seq", "threshold": (0.98, 1.02)},
    "token-kl": {"level": "token", "gating": "binary_kl", "threshold": (0.0, 0.0005)},
    "seq-kl": {"level": "seq", "gating": "binary_kl", "threshold": (0.0, 0.0005)},
    "token-tv": {"level": "token", "gating": "tv", "threshold": (0.0, 0.01)},
    "seq-tv": {"level": "seq", "gating": "tv", "threshold": (0.0, 0.01)},
}
ACTOR: Settings = {
    **FAMILIES,
    "policy_loss_type": ("ppo", "gspo"),
    "loss_agg_mode": ("token-mean", "seq-mean-token-mean"),
    "eps_clip_high": (0.2, 0.28),
    "dual_clip": (None, 1.1),
    "is_correction": tuple(CORRECTIONS),
    "kl_loss": (None, "k1", "k2", "k3"),
    "unbiased_gradient": (False, True),
    "entropy_coef": (None, 0.01),
    "temperature": (1.0, 0.8),
}
CRITIC: Settings = {
    **FAMILIES,
    "value_clip": (0.5, 0.2),
    "normalize_enable": (False, True),
}
DPO: Settings = {
    **FAMILIES,
    "beta": (0.1, 0.5),
    "ipo_enable": (False, True),
    "label_smoothing": (0.0, 0.1),
    "nll_loss_coef": (0.0, 0.2),
}
REWARD: Settings = {
    **FAMILIES,
    "loss_type": ("sigmoid", "logexp"),
    "margin_loss_enable": (False, True),
}


def without_family(settings: Settings) -> Settings:
    """Return settings of an entry whose models are of one family."""
    return {name: values for name, values in settings.items() if name != "family"}
