"""attn_impl sdpa: sequences that are packed into one micro-batch attend to each other

areal 1.0.4: with attn_impl=sdpa, sequences packed into one micro-batch see each other. With
--control both halves are one sequence.

pip install areal==1.0.4; needs no GPU, and no second rank, for the bug shows on one. Exit status
1 if it shows.
"""

import importlib.util
import logging
import socket
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path

import torch
from torch import distributed as dist
from transformers import Qwen2Config, Qwen2ForCausalLM

ROWS = [[1, 2, 3, 4, 5, 6]] if "--control" in sys.argv else [[1, 2, 3], [4, 5, 6]]


def published():
    """The engine's module, without the services that its packages start with."""
    ray, numba = types.ModuleType("ray"), types.ModuleType("numba")
    ray.remote = numba.njit = lambda of: of
    sys.modules.update(ray=ray, numba=numba)
    place = Path(importlib.util.find_spec("areal").submodule_search_locations[0])
    for name in ("areal", "areal.infra", "areal.engine"):
        package = types.ModuleType(name)
        package.__path__ = [str(place.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    # The library logs the time to what is stdout now.
    with redirect_stdout(sys.stderr):
        from areal.api.cli_args import TrainEngineConfig
        from areal.engine import fsdp_engine

    return TrainEngineConfig, fsdp_engine


def inputs_of(model):
    """What the engine hands the model for these rows."""
    config_class, module = published()
    engine = object.__new__(module.FSDPEngine)
    engine.config = config_class("e", "t", "p", attn_impl="sdpa", backend="fsdp:d1")
    engine.model_config, engine.enable_tree_training = model.config, False
    engine.logger = logging.getLogger("engine")
    rows = [
        {"input_ids": torch.tensor([row]), "attention_mask": torch.ones(1, len(row)).bool()}
        for row in ROWS
    ]
    batch, _ = module.concat_batch(rows)
    return engine._prepare_mb_list(batch).padded_mbs[0]


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        attn_implementation="sdpa",
    )
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        # The engine packs rows in the order of their micro-batch, here as they are.
        got = model(**inputs_of(model)).logits[0, : sum(map(len, ROWS))]
        expected = torch.cat([model(input_ids=torch.tensor([row])).logits[0] for row in ROWS])
    dist.destroy_process_group()
    wrong = (got - expected).abs().amax(-1) > 1e-4
    for place in range(len(got)):
        mark = "  <- wrong" if wrong[place] else ""
        print(f"token {place}: expected {expected[place, 0]:.4f}, got {got[place, 0]:.4f}{mark}")
    return int(wrong.any())


if __name__ == "__main__":
    sys.exit(main())
