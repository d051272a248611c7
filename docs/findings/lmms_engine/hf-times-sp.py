"""hf_trainer: gradients and log are sp_ulysses_degree times too large

lmms-engine 0.1.4. `Trainer.compute_loss` multiplies by sp_ulysses_degree; so does the backward of
`gather_outputs_and_unpad` (grad_scaler), through which the patched forwards take their losses.
With --control the loss is the model's own, without `compute_loss`.

Run: python hf-times-sp.py (two processes on the CPU; no GPU, nothing of transformers).
"""

import ast
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# The loss of a token is its weight times `w`.
WEIGHTS = torch.tensor([1.0, 2.0, 4.0, 9.0])


def released(root: str):
    """The module, without what the package above it imports beside it."""
    sys.modules["lmms_engine"] = package = ModuleType("lmms_engine")
    package.__path__ = [root]
    from lmms_engine.parallel.sequence_parallel import ulysses

    return ulysses


def trainer_of(root: str, ulysses):
    """The released `Trainer.compute_loss`, above a trainer that asks the model and no more."""
    tree = ast.parse(Path(root, "train", "hf", "trainer.py").read_text())
    (node,) = (node for node in tree.body if getattr(node, "name", "") == "Trainer")
    node.body = [method for method in node.body if method.name == "compute_loss"]
    node.decorator_list = []

    class HFTrainer:
        def compute_loss(self, model, inputs, **_):
            return model(inputs), None

    name = "get_ulysses_sequence_parallel_world_size"
    given = {"HFTrainer": HFTrainer, "torch": torch, name: getattr(ulysses, name)}
    exec(compile(ast.Module([node], []), "trainer.py", "exec"), given)
    trainer = given["Trainer"]()
    # Neither the first step nor one that logs how fast it is.
    trainer.state = SimpleNamespace(global_step=1)
    trainer.cur_time, trainer.total_seq_len = 0.0, []
    return trainer


def rank(index: int, size: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=size)
    root = importlib.util.find_spec("lmms_engine").submodule_search_locations[0]
    ulysses = released(root)
    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD if size > 1 else None)
    w = torch.ones((), requires_grad=True)

    def model(_inputs):
        """As the patched forwards: losses of a rank's own tokens, gathered."""
        return ulysses.gather_outputs_and_unpad(
            w * WEIGHTS.chunk(size)[index], gather_dim=0
        ).mean()

    inputs = {"attention_mask": torch.ones(1, len(WEIGHTS))}
    if "--control" in sys.argv:
        loss = model(inputs)
    else:
        loss = trainer_of(root, ulysses).compute_loss(model, inputs)
    loss.backward()
    # FSDP averages over all ranks.
    dist.all_reduce(w.grad)
    found.put(w.grad.item() / size)
    ulysses.set_ulysses_sequence_parallel_group(None)  # Held at exit, it aborts now and then.
    dist.destroy_process_group()


def run(size: int):
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (size, f"file://{folder}/store", found), nprocs=size)
    return found.get()


def main() -> int:
    expected, got = run(1), run(2)
    print(f"expected gradient {expected:.6f} (sp_ulysses_degree 1)")
    print(f"got      gradient {got:.6f} (sp_ulysses_degree 2)")
    return int(abs(got - expected) > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
