"""Knowledge distillation of language models with cp_size above 1 and pp_size 1 raises KeyError:
'labels' in its first step

nemo-automodel 0.7.0: the released _forward_backward_step on a small Llama and its teacher, as the
first of two ranks that share a sequence runs it. With --control one rank has the whole sequence.

pip install nemo-automodel==0.7.0; needs no GPU. Exit status 1 if the bug shows.
"""

import ast
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from nemo_automodel.components.distributed.context_parallel.utils import (
    attach_context_parallel_hooks,
)
from nemo_automodel.components.loss.kd_loss import KDLoss
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig, LlamaForCausalLM

# The modules of which the released step uses names.
PACKAGE = "nemo_automodel.components."
USED = ["contextlib", f"{PACKAGE}distributed.context_parallel", f"{PACKAGE}distributed.utils"]
USED += [f"{PACKAGE}loss.{name}" for name in ("utils", "linear_ce_base")]
USED += [f"{PACKAGE}training.{name}" for name in ("model_output_utils", "utils")]
USED += [f"{PACKAGE}utils.model_utils"]


def released_step():
    """The method alone, because its module imports torchao, datasets and more."""
    root = Path(importlib.util.find_spec("nemo_automodel").submodule_search_locations[0])
    path = root / "recipes/llm/kd.py"
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    methods = (node for recipe in classes for node in recipe.body)
    step = next(x for x in methods if getattr(x, "name", "") == "_forward_backward_step")
    names = {"torch": torch}
    for module in USED:
        names |= vars(importlib.import_module(module))
    exec(compile(ast.Module([step], []), str(path), "exec"), names)
    return names["_forward_backward_step"]


def loss(mesh):
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    models = [LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.5)) for _ in range(2)]
    if mesh is not None:
        for model in models:
            attach_context_parallel_hooks(model)
    recipe = SimpleNamespace(
        pp_enabled=False,
        dist_env=SimpleNamespace(device=torch.device("cpu")),
        device_mesh=mesh,
        model_parts=models[:1],
        teacher_model=models[1],
        _offload_teacher_model=False,
        kd_ratio=0.5,
        loss_fn=MaskedCrossEntropy(),
        kd_loss_fn=KDLoss(),
    )
    labels = torch.tensor([[2, 3, 4, -100]])
    batch = {"input_ids": torch.tensor([[1, 2, 3, 4]]), "labels": labels}
    options = {"num_label_tokens": 3, "num_batches": 1, "is_train": False}
    with torch.no_grad():
        return f"{released_step()(recipe, 0, batch, **options)[0].item():.4f}"


def main():
    # The step raises before it sends anything, so that one process shows it.
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    is_shared = "--control" not in sys.argv
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",)) if is_shared else None
    expected = loss(None)
    try:
        got = loss(mesh)
    except KeyError as error:
        got = f"KeyError: {error}"
    print(f"expected {expected}, the loss of one rank")
    print(f"got      {got}, with cp_size {1 + is_shared}")
    return int(got != expected)


if __name__ == "__main__":
    sys.exit(main())
