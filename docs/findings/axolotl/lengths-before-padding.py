"""With position_ids, a length that context_parallel_size does not divide ends training.

axolotl 0.19.0, ring-flash-attn 0.1.8. Lengths are handed to the ring before the batch is
padded. A row of 3 tokens on two ranks of a CPU; nothing is attended to.

    python lengths-before-padding.py
"""

import sys
import tempfile
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
import transformers.modeling_flash_attention_utils as attention
from torch import distributed as dist
from torch import multiprocessing

RANKS = 2


def stand_in_for_flash_attn() -> None:
    package, interface = (
        types.ModuleType(name) for name in ("flash_attn", "flash_attn.flash_attn_interface")
    )
    for name in ("forward", "backward", "varlen_forward", "varlen_backward"):
        setattr(interface, f"_flash_attn_{name}", None)
    for each in (package, interface):
        each.__spec__ = ModuleSpec(each.__name__, None)
        sys.modules[each.__name__] = each
    # As axolotl's check of a config does.
    attention.is_flash_attn_greater_or_equal_2_10 = lambda: True
    attention.is_flash_attn_greater_or_equal = lambda version: True


def work(rank: int, store: str, queue: Any) -> None:
    dist.init_process_group("gloo", f"file://{store}", world_size=RANKS, rank=rank)
    stand_in_for_flash_attn()
    from axolotl.monkeypatch.ring_attn import set_ring_attn_group
    from axolotl.utils.ctx_managers import sequence_parallel as sharing
    from axolotl.utils.schemas.enums import RingAttnFunc

    torch.cuda.current_device = lambda: "cpu"
    set_ring_attn_group(dist.group.WORLD)
    batch = {name: torch.arange(3)[None] for name in ("input_ids", "labels", "position_ids")}
    try:
        cut, *_ = sharing.apply_sequence_parallelism(
            batch, rank, RANKS, 1, RingAttnFunc.VARLEN_LLAMA3
        )
        came = cut["input_ids"].shape[1]
    except AssertionError:
        came = "AssertionError"
    if rank == 0:
        queue.put(came)
    dist.destroy_process_group()


def main() -> int:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (str(Path(folder, "store")), queue), RANKS)
    got = queue.get()
    expected = 2
    print("tokens of the first rank, of a row of 3")
    print("expected", expected)
    print("got     ", got)
    return 0 if got == expected else 1


if __name__ == "__main__":
    sys.exit(main())
