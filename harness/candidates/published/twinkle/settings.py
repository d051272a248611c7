"""Settings of twinkle's losses that cases state: the release's default comes first."""

from harness.case.settings import Settings

# The release adds the balance loss of experts to each loss, and no recipe has it.
FAMILIES: Settings = {"family": ("llama", "qwen3", "deepseek-v3")}
# What all losses of a policy have.
OF_POLICIES: Settings = {
    **FAMILIES,
    "epsilon_high": (None, 0.28),
    "entropy_coef": (0.0, 0.01),
    "temperature": (1.0, 0.8),
}
GRPO: Settings = {
    **OF_POLICIES,
    "loss": ("GRPOLoss", "GSPOLoss", "SAPOLoss", "CISPOLoss", "BNPOLoss", "DRGRPOLoss"),
    "beta": (0.0, 0.1),
}
PPO: Settings = {
    **OF_POLICIES,
    "loss_agg_mode": ("token-mean", "seq-mean-token-mean"),
}
DPO: Settings = {
    **FAMILIES,
    "loss_type": ("sigmoid", "hinge", "ipo", "kto_pair"),
    "label_smoothing": (0.0, 0.1),
    "reference_free": (False, True),
    "sft_weight": (0.0, 1.0),
}
# Losses of pairs that need no reference.
PAIRS: Settings = {**FAMILIES, "loss": ("SimPOLoss", "CPOLoss", "ORPOLoss")}
VALUE: Settings = {"epsilon": (0.2, 0.5)}
