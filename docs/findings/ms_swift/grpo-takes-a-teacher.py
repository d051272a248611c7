"""GRPO without a teacher refuses loss_type real and fipo and off_policy_sequence_mask_delta:
_has_teacher is always True

ms-swift 4.6.0. The released _setup_teacher with the two functions that it calls, and the released
_compute_loss_and_metrics, without a teacher. Log-probabilities are data: no model is needed.
Run: python grpo-takes-a-teacher.py (one process on the CPU). With --control loss_type is dapo.
"""

import ast
import sys
import typing
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import torch

LOSS = "dapo" if "--control" in sys.argv else "fipo"
SWIFT = Path(find_spec("swift").submodule_search_locations[0])
FUNCTIONS = {
    "resolve_dynamic_opd_self_distillation": "rlhf_trainers/gkd_helpers.py",
    "_setup_teacher": "rlhf_trainers/rollout_mixin.py",
    "_has_teacher_explicit": "rlhf_trainers/rollout_mixin.py",
    "_compute_fipo_influence": "rlhf_trainers/grpo_trainer.py",
    "_compute_loss_and_metrics": "rlhf_trainers/grpo_trainer.py",
}
# No teacher, and all else at its default but for beta, so that no reference is needed.
TRAINER = {
    "_teacher_model": None,
    "teacher_model_server": None,
    "is_deepspeed_enabled": False,
    "compute_entropy": False,
    "overlong_filter": False,
    "beta": 0.0,
    "kl_in_reward": False,
    "rollout_importance_sampling_mode": None,
    "log_rollout_offpolicy_metrics": False,
    "disable_rollout_importance_sampling": False,
    "importance_sampling_level": "token",
    "off_policy_sequence_mask_delta": None,
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "sdar_loss_coef": 0.0,
    "chord_sft_iterator": None,
    "fipo_gamma": 2 ** (-1 / 32),
    "fipo_clip_range": 0.2,
    "fipo_clip_high_only": True,
    "fipo_safety_threshold": 4.0,
    "loss_type": LOSS,
}


def released() -> type:
    """A trainer of the released functions, out of modules that import much beside them."""
    names = {**vars(typing), "torch": torch, "GRPOBatch": object, "VLLMInferClient": object}
    names |= {"TeacherServerConfig": object, "gather_object": list}
    names |= {"nanmin": torch.min, "nanmax": torch.max}
    names["WINDOW_NORMALIZED_LOSS_TYPES"] = ["cispo", "dapo", "fipo"]
    for name, path in FUNCTIONS.items():
        nodes = ast.walk(ast.parse((SWIFT / path).read_text()))
        node = next(node for node in nodes if getattr(node, "name", "") == name)
        exec(compile(ast.Module([node], []), str(SWIFT / path), "exec"), names)
    return type("Trainer", (), names)


trainer = released()()
vars(trainer).update(TRAINER)
trainer.args = SimpleNamespace(delta=None, ds3_gather_for_generation=True)
trainer.model = SimpleNamespace(training=True)
trainer.accelerator = SimpleNamespace(num_processes=1, gather_for_metrics=lambda x: x)
trainer._undo_gradient_accumulation_scaling = lambda loss: loss
trainer._setup_teacher()

torch.manual_seed(0)
logps, old = -torch.rand(2, 2, 3)
trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logps, None)
batch = SimpleNamespace(
    completion_mask=torch.ones(2, 3, dtype=torch.bool),
    truncated_mask=torch.zeros(2, dtype=torch.bool),
    old_per_token_logps=old,
    rollout_per_token_logps=None,
    teacher_per_token_logps=None,
    advantages=torch.tensor([[1.0], [-1.0]]).expand(2, 3),
    num_items_in_batch=torch.tensor(6),
)
print(f"no teacher, loss_type {LOSS}\nexpected a loss")
try:
    loss, _ = trainer._compute_loss_and_metrics(trainer.model, {}, batch)
    print(f"got      a loss of {loss.item():.4f}")
except ValueError as error:
    print(f"got      ValueError: {error}")
    sys.exit(1)
