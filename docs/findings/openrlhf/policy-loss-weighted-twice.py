"""The logged policy_loss is weighted by tokens twice where token counts differ, and is about 1/k
of the loss with k dynamic micro-batches.

OpenRLHF 0.11.2. ActorPPOTrainer.ppo_train on one rank and two micro-batches, of one and of three
actions. Every action has a ratio of 1 and an advantage of -1, so that the loss of each is 1.
With --control both micro-batches have two actions.

    python policy-loss-weighted-twice.py [--control]
"""

import ast
import dataclasses
import importlib
import pathlib
import sys
import types
import typing
from importlib import metadata
from types import SimpleNamespace as Names
from typing import Any

import torch
from tqdm import tqdm

ACTIONS = (2, 2) if "--control" in sys.argv else (1, 3)
vars(torch.cuda)["current_device"] = lambda: "cpu"
root = metadata.distribution("openrlhf").locate_file("openrlhf")


def released(name: str) -> Any:
    """A module of OpenRLHF, where its packages would import what needs a GPU."""
    for package in ("models", "utils", "trainer", "trainer.ppo_utils"):
        bare = types.ModuleType(f"openrlhf.{package}")
        bare.__path__ = [f"{root}/{package.replace('.', '/')}"]
        sys.modules.setdefault(bare.__name__, bare)
    return importlib.import_module(name)


Experience = released("openrlhf.trainer.ppo_utils.experience").Experience
utils = released("openrlhf.utils.loss_utils")
# Not before transformers is imported, which would look into it.
sys.modules.setdefault("deepspeed", types.ModuleType("deepspeed"))
losses = released("openrlhf.models.loss")


def methods(*names: str) -> dict[str, Any]:
    """Methods of ActorPPOTrainer, word for word; their module imports ray."""
    tree: Any = ast.parse(pathlib.Path(str(root), "trainer/ray/ppo_actor.py").read_text())
    body = next(node for node in tree.body if getattr(node, "name", "") == "ActorPPOTrainer").body
    given: dict[str, Any] = {
        name: getattr(typing, name) for name in ("Dict", "List", "Optional", "Union")
    }
    given |= {"torch": torch, "fields": dataclasses.fields, "Experience": Experience}
    given |= {"iter_grad_accum_global_norm": utils.iter_grad_accum_global_norm}
    given["tqdm"], given["DataLoader"] = tqdm, lambda buffer, **_: buffer.items
    for node in body:
        if getattr(node, "name", "") in names:
            exec(compile(ast.Module([node], []), "ppo_actor.py", "exec"), given)
    return {name: given[name] for name in names}


def experience(actions: int) -> Any:
    ones = torch.ones(1, actions)
    fields = {"action_mask": ones, "action_log_probs": -ones, "advantages": -ones}
    return Experience(sequences=torch.zeros(1, actions + 1), **fields)


def main() -> int:
    args = Names(
        actor=Names(entropy_coef=None),
        algo=Names(kl=Names(use_loss=False)),
        ds=Names(tensor_parallel_size=1),
        train=Names(dynamic_batch_enable=False),
    )
    strategy = Names(ring_attn_group=None, accumulated_gradient=2, is_rank_0=lambda: False)
    strategy.all_reduce = lambda data: data
    strategy.backward = strategy.optimizer_step = strategy.get_grad_norm = lambda *_, **__: 0.0
    trainer: Any = type("Trainer", (), methods("ppo_train", "training_step"))()
    trainer.strategy, trainer.args, trainer.max_epochs = strategy, args, 1
    methods_of_actor = {"train": lambda _: None, "__call__": lambda *given, **_: (-given[2], None)}
    trainer.actor = type("Actor", (), methods_of_actor)()
    trainer.actor_loss_fn = losses.PolicyLoss()
    trainer.actor_scheduler = Names(get_last_lr=lambda: [0.0])
    trainer.actor_optim = trainer.ema_model = trainer.aux_loss = None
    trainer.dataloader_pin_memory = False
    items = [experience(actions) for actions in ACTIONS]
    trainer.replay_buffer = Names(items=items, sample_batch_size=1, collate_fn=None)
    got = trainer.ppo_train(0.0)["policy_loss"]
    print("expected 1.000000, the mean loss of all actions")
    print(f"got      {got:.6f}, the logged policy_loss")
    return 0 if abs(got - 1) < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
