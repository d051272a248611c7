"""GRPO with sequence_parallel_size > 1 and without padding_free trains on log-probabilities of
later tokens where the length is no multiple of it: _get_logps_via_sp counts the padding

ms-swift 4.6.0. The released _get_logps_via_sp and SequenceParallel on two ranks, beside the
released _get_logps_via_local_forward on one: a small Llama, two answers of three tokens,
advantages 1 and -1. Run: python grpo-columns-moved-by-padding.py (two processes on the CPU).
With --control rows have eight tokens, not seven, so that nothing is padded.
"""

import ast
import importlib.util
import sys
import tempfile
import typing
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH, ANSWER = 8 if "--control" in sys.argv else 7, 3
SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
SPECS = (importlib.util.find_spec(name) for name in ("swift", "trl"))
SWIFT, TRL = (Path(spec.submodule_search_locations[0]) for spec in SPECS)


def lifted(path: Path, name: str, **given):
    """One released function out of a module that imports much beside it."""
    nodes = ast.walk(ast.parse(path.read_text()))
    node = next(node for node in nodes if getattr(node, "name", "") == name)
    exec(compile(ast.Module([node], []), str(path), "exec"), names := {**vars(typing), **given})
    return names[name]


def released(size: int):
    """The released functions and their sequence_parallel, for so many ranks on the CPU."""
    utils = {
        "HfConfigFactory": SimpleNamespace(get_config_attr=getattr),
        "get_cu_seqlens_from_position_ids": None,  # Only a ring asks for it.
        "get_device": lambda: "cpu",
        "get_dist_setting": lambda: (-1, -1, size, size),
    }
    packages = {"swift": {}, "swift.utils": utils}
    packages["swift.model"] = {"get_llm_model": lambda model: model.model}
    packages["swift.dataloader"] = {"DataLoaderDispatcher": object}
    for name, given in packages.items():
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(given, __path__=[str(SWIFT.joinpath(*name.split(".")[1:]))])
    from swift.sequence_parallel import GatherLoss, sequence_parallel

    softmax = lifted(TRL / "trainer/utils.py", "selective_log_softmax", torch=torch, F=F)
    names = {"GatherLoss": GatherLoss, "sequence_parallel": sequence_parallel, "torch": torch}
    names |= {"GRPOBatch": None, "selective_log_softmax": softmax}
    functions = ("_get_logps_via_local_forward", "_get_logps_via_sp")
    file = SWIFT / "rlhf_trainers/grpo_trainer.py"
    return sequence_parallel, *(lifted(file, name, **names) for name in functions)


def rank(index: int, size: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=size)
    sequence_parallel, local, shared = released(size)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2, initializer_range=0.5))
    model.model_info = SimpleNamespace(is_moe_model=False)
    trainer = SimpleNamespace(template=SimpleNamespace(padding_free=False), temperature=1.0)
    trainer._template_context = lambda *_: nullcontext()
    trainer.model_kwarg_keys, trainer.processing_class = (), SimpleNamespace(pad_token_id=0)
    ids = torch.randint(1, 32, (2, 8))[:, :LENGTH]

    def step(function, *asked):
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        inputs["position_ids"] = torch.arange(LENGTH).expand_as(ids)
        log_probs, _ = function(trainer, model, inputs, *asked, ANSWER, ids)
        model.zero_grad()
        (log_probs * torch.tensor([[-1.0], [1.0]])).mean().backward()
        gradient = torch.cat([each.grad.flatten() for each in model.parameters()])
        dist.all_reduce(gradient)  # The average over ranks, as DDP has it.
        rows = (" ".join(f"{each:5.2f}" for each in row) for row in log_probs.tolist())
        return " | ".join(rows), gradient / size

    expected, exact = step(local)
    sequence_parallel.prepare(size, model, trainer.processing_class, padding_free=False)
    got, gradient = step(shared, None)
    if index == 0:
        found.put((expected, got, F.cosine_similarity(exact, gradient, 0).item()))
    dist.destroy_process_group()


if __name__ == "__main__":
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (2, f"file://{folder}/store", found), nprocs=2)
    expected, got, cosine = found.get()
    print(f"expected log-probabilities {expected}, cosine of gradients 1.00")
    print(f"got      log-probabilities {got}, cosine of gradients {cosine:.2f}")
    sys.exit(int(cosine < 0.99))
