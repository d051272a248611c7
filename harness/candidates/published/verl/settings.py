"""Settings of verl's actor and critic that cases state: the release's default comes first."""

from harness.candidates.published.wiring.families import OF_POLICIES, OF_VALUES
from harness.case.settings import Settings

# How the losses of tokens become one number.
MEANS = {
    "loss_agg_mode": (
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",
        "seq-mean-token-mean",
    )
}
# What the loss of an actor is made of.
ACTOR: Settings = {
    **OF_POLICIES,
    **MEANS,
    "loss_mode": ("vanilla", "dppo_tv", "gspo", "sapo", "gpg", "dro", "cispo"),
    "clip_ratio_high": (0.2, 0.28),
    "entropy_coeff": (0.0, 0.01),
    "use_kl_loss": (False, True),
    "kl_loss_type": ("low_var_kl", "kl", "abs", "mse"),
}
CRITIC: Settings = {**OF_VALUES, **MEANS, "cliprange_value": (0.5, 0.2)}
# How an engine makes micro-batches, and trains.
ENGINE: Settings = {
    "use_dynamic_bsz": (False, True),
    "pad_to_length": (False, True),
    "enable_gradient_checkpointing": (True, False),
}
