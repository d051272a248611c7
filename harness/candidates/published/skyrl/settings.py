"""Settings of SkyRL's policy and critic that cases state: the release's default comes first."""

from harness.candidates.published.wiring.families import OF_POLICIES, OF_VALUES
from harness.case.settings import Settings

POLICY: Settings = {
    **OF_POLICIES,
    "policy_loss_type": ("regular", "dual_clip", "gspo", "sapo", "cispo", "importance_sampling"),
    "loss_reduction": (
        "token_mean",
        "sequence_mean",
        "seq_mean_token_sum_norm",
        "token_mean_legacy",
    ),
    "eps_clip_high": (0.2, 0.28),
    # At its default `dual_clip` bounds hardly any loss.
    "clip_ratio_c": (3.0, 1.1),
    "use_kl_loss": (True, False),
    "kl_estimator_type": ("k3", "k2", "k1", "abs"),
    "use_entropy_loss": (False, True),
}
# What logits are divided by. Where workers give the log-probabilities of a reference, a listed bug
# is about it, and another entry has it.
TEMPERED: Settings = {**POLICY, "temperature": (1.0, 0.8)}
CRITIC: Settings = {**OF_VALUES, "value_clip": (0.2, 0.5)}
