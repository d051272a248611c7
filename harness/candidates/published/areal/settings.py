"""Settings of AReaL's actor and critic that cases state: the release's default comes first."""

from typing import Any

from harness.case.settings import Settings

# Other families read the mask, for which the engine hands over a dict, and raise.
OF_VALUES: Settings = {"family": ("qwen3", "qwen3-moe")}
# transformers has no Gemma 3 with a number for each token.
OF_POLICIES: Settings = {"family": (*OF_VALUES["family"], "gemma-3")}
# `rejection_sampling` by a name for each: bounds are so tight that they bite.
REJECTIONS: dict[str | None, dict[str, Any]] = {
    None: {},
    "mask": {"upper": 1.1, "lower": 0.9},
    "mask-kl": {"metric": "kl_k2", "upper": 0.005},
    "clamp": {"action": "clamp", "upper": 1.1, "lower": 0.9},
    "rows-mask": {"level": "sequence", "upper": 1.05, "lower": 0.95},
    "rows-mask-sum": {"level": "sequence", "agg": "sum", "upper": 1.1, "lower": 0.9},
    "rows-mask-kl": {"level": "sequence", "metric": "kl_k2", "agg": "max", "upper": 0.02},
    # Of this one the documentation has another formula than the code: an entry of its own has it.
    "mask-k3": {"metric": "kl_k3", "upper": 0.5},
    "rows-clamp": {"level": "sequence", "action": "clamp", "upper": 1.05, "lower": 0.95},
}
# `reward_norm` and `adv_norm`, by a name for each. Rows are in pairs of one prompt.
NORMS: dict[str | None, dict[str, Any]] = {
    None: {},
    "group": {"mean_level": "group", "std_level": "group", "group_size": 2},
    "group-rloo": {
        "mean_level": "group",
        "mean_leave1out": True,
        "std_level": None,
        "group_size": 2,
    },
    "biased": {"std_unbiased": False},
    "batch": {},
    "batch-rloo": {"mean_leave1out": True, "std_level": None},
}
# How a policy's loss is made of ratios.
LOSS: Settings = {
    "eps_clip_higher": (None, 0.28),
    # At a common bound of 3 hardly any loss is bounded.
    "c_clip": (None, 1.1),
    "importance_sampling_level": ("token", "sequence"),
    "use_sapo_loss": (False, True),
    "use_decoupled_loss": (False, True),
}
ACTOR: Settings = {
    **OF_POLICIES,
    **LOSS,
    "rejection_sampling": tuple(name for name in REJECTIONS if name != "mask-k3"),
    "temperature": (1.0, 0.8),
    # `rl_loss_weight` of a teacher, or none.
    "teacher": (None, 1.0, 0.0),
}
# From rewards of rows to advantages of tokens.
REWARDS: Settings = {
    **OF_POLICIES,
    "use_decoupled_loss": LOSS["use_decoupled_loss"],
    "recompute_logprob": (False, True),
    "kl_estimator": ("k1", "k2", "k3"),
    "discount": (1.0, 0.9),
    "gae_lambda": (1.0, 0.95),
    "temperature": (1.0, 0.8),
    "reward_norm": (None, "group", "group-rloo", "biased"),
    "adv_norm": (None, "group", "biased"),
}
# Where the mean or the deviation is that of the whole batch.
NORMED: Settings = {
    **OF_POLICIES,
    "reward_norm": (None, "batch", "batch-rloo"),
    "adv_norm": ("batch", "batch-rloo", None),
}
CRITIC: Settings = {**OF_VALUES, "eps_clip": (0.5, 0.2)}
# How the engine trains.
ENGINE: Settings = {"gradient_checkpointing": (False, True)}
