"""Settings of the library's recipes that cases state: the release's default comes first."""

from harness.case.settings import Settings

# What a recipe trains.
FAMILIES: Settings = {"family": ("llama", "qwen3")}
DISTILLED: Settings = {
    **FAMILIES,
    "teacher": ("llama", "qwen3"),
    "kd_ratio": (0.5, 1.0, 0.25),
    "temperature": (1.0, 2.0),
}
BALANCED: Settings = {"router_aux_loss_coef": (0.001, 0.1)}
# How the library trains it.
ENGINE: Settings = {
    "loss_fn": ("masked", "chunked"),
    "activation_checkpointing": (False, True),
    "defer_fsdp_grad_sync": (True, False),
    "all_replicated": (False, True),
}
OF_DISTILLING: Settings = {
    **ENGINE,
    "force_hf": (False, True),
    "fp32_upcast": (True, False),
    "chunk_size": (0, 3),
    # 0 is also the id of a token.
    "ignore_index": (-100, 0),
}
