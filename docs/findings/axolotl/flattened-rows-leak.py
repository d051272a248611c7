"""batch_flattening with context parallelism: rows attend to each other.

axolotl 0.19.0, ring-flash-attn 0.1.8. The config schema accepts both together and chooses
batch_ring, which takes position_ids and ignores them. Two ranks on a CPU; values are unit vectors,
so that an output holds the attention weights.

    python flattened-rows-leak.py
"""

import sys
import tempfile
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing
from transformers.utils import is_vision_available

# Nothing is compiled on a CPU.
torch.compiler.set_stance("force_eager")
RANKS, TOKENS = 2, 8
CONFIG: dict[str, Any] = {"base_model": "any", "datasets": [{"path": "any", "type": "alpaca"}]}
CONFIG |= {"learning_rate": 1e-4, "gradient_accumulation_steps": 1, "micro_batch_size": 2}
CONFIG |= {"attn_implementation": "flash_attention_2"}
CONFIG |= {"context_parallel_size": RANKS, "batch_flattening": True}


def kernel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float, causal: bool, **_: Any
) -> tuple[Any, ...]:
    """flash-attn's forward: the last query stands at the last key."""
    back = torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None] - torch.arange(k.shape[1])
    scores = torch.einsum("bqnh,bknh->bnqk", q, k) * softmax_scale
    scores = scores.masked_fill(back < 0, -torch.inf) if causal else scores
    out = torch.einsum("bnqk,bknh->bqnh", scores.softmax(-1), v)
    return out, scores.logsumexp(-1), None, None


def stand_in(name: str, **names: Any) -> None:
    sys.modules[name] = module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(names)


def ring() -> Any:
    """What the config schema chooses; raises ValueError where it refuses the config."""
    parts = ("forward", "backward", "varlen_forward", "varlen_backward")
    stand_in("flash_attn")
    stand_in("flash_attn.flash_attn_interface", **{f"_flash_attn_{x}": kernel for x in parts})
    if not is_vision_available():
        stand_in("PIL")
        stand_in("PIL.Image", Resampling=int)
    from axolotl.utils.schemas.config import AxolotlInputConfig

    return AxolotlInputConfig(**CONFIG).ring_attn_func


def work(rank: int, store: str, queue: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    chosen = ring()
    from axolotl.monkeypatch.ring_attn.adapters import batch

    attend = batch.create_flash_attn_forward_varlen_llama3(dist.group.WORLD, chosen)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, TOKENS, 1, TOKENS)
    v = torch.eye(TOKENS)[None, :, None]
    mine = [x.chunk(RANKS, 1)[rank] for x in (q, k, v)]
    # Rows of four tokens, of which each rank has one.
    positions = torch.arange(TOKENS // RANKS)[None]
    out = attend(*mine, None, TOKENS // RANKS, True, position_ids=positions)
    if rank == RANKS - 1:
        queue.put((out[0, -1, 0] > 1e-6).nonzero().flatten().tolist())
    dist.destroy_process_group()


def main() -> int:
    try:
        chosen = ring()
    except ValueError as error:
        print(f"the config is refused, as it should be: {error}")
        return 0
    print("the config is accepted, with ring_attn_func", chosen.value)
    if chosen.value != "batch_ring":
        return 0
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (f"{folder}/store", queue), RANKS)
    got = queue.get()
    expected = [4, 5, 6, 7]
    print("which of 8 tokens the last attends to; its row begins at 4")
    print("expected", expected)
    print("got     ", got)
    return 0 if got == expected else 1


if __name__ == "__main__":
    sys.exit(main())
