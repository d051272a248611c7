"""With sequence parallelism the same loss gives gradients that differ by sp: ZeRO 3 with
reduce_scatter divides by all ranks, other stages by ranks / sp.

DeepSpeed 0.19.8, transformers 5.23.0, two ranks on CPU. One step of the loop of the ALST tutorial,
on one row without padding. Its all_gather sums gradients over ranks in backward. ZeRO 0, 1, 2 and
ZeRO 3 without reduce_scatter divide by world/sp, ZeRO 3 with reduce_scatter divides by world. With
--control only ZeRO 3 with reduce_scatter runs.

    python engine-gradients-times-sp.py
"""

import logging
import os
import sys
import tempfile
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
# The library logs the time to where this prints.
logging.disable(logging.WARNING)

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from deepspeed.utils import safe_get_full_grad
from torch import distributed
from torch.distributed.nn.functional import all_gather
from torch.multiprocessing.spawn import spawn
from transformers import LlamaConfig, LlamaForCausalLM

SP = 2
BATCH = {
    "input_ids": torch.tensor([[1, 2, 3, 4, 5, 6]]),
    "position_ids": torch.arange(6)[None],
    "shift_labels": torch.tensor([[2, 3, 4, 5, 6, -100]]),
}
ZERO = [(3, True)]
if "--control" not in sys.argv:
    ZERO += [(0, True), (1, True), (2, True), (3, False)]


def build() -> Any:
    torch.manual_seed(0)
    size: dict[str, Any] = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**size, **heads, num_hidden_layers=1))


def loss_of(model: Any, logits: Any, batch: Any) -> Any:
    labels, size = batch["shift_labels"], model.config.vocab_size
    return model.loss_function(logits=logits, labels=None, shift_labels=labels, vocab_size=size)


def train(mpu: Any, stage: int, rank: int, *, scatter: bool) -> Any:
    model = build()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage, "reduce_scatter": scatter, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "sequence_parallel_size": SP,
    }
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=sgd, config=config, mpu=mpu)
    # As UlyssesSPDataLoaderAdapter shards it.
    batch = {key: value.chunk(SP, dim=1)[rank] for key, value in BATCH.items()}
    logits = engine(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
    losses = all_gather(loss_of(engine.module, logits, batch))
    counts = all_gather((batch["shift_labels"] != -100).sum())
    engine.backward(sum(losses[i] * counts[i] for i in range(SP)) / sum(counts))
    return safe_get_full_grad(engine.module.lm_head.weight).norm().item()


def rank_main(rank: int, folder: str) -> None:
    os.environ.update(LOCAL_RANK=str(rank))
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=SP)
    # Otherwise a kernel for shared memory is compiled, for a minute.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    mpu = UlyssesSPAttentionHF.register_with_transformers(build(), "sdpa", SP, micro_batch_size=1)
    norms = [train(mpu, stage, rank, scatter=scatter) for stage, scatter in ZERO]
    torch.save(norms, f"{folder}/{rank}")


def main() -> int:
    model = build()
    loss_of(model, model(input_ids=BATCH["input_ids"]).logits, BATCH).backward()
    expected = model.lm_head.weight.grad.norm().item()
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank_main, (folder,), nprocs=SP)
        got = torch.load(f"{folder}/0")
    print(f"expected |gradient of lm_head| {expected:.4f}")
    for (stage, scatter), norm in zip(ZERO, got, strict=True):
        print(f"got      |gradient of lm_head| {norm:.4f}, ZeRO {stage}, reduce_scatter {scatter}")
    return int(any(abs(norm - expected) > 1e-5 for norm in got))


if __name__ == "__main__":
    sys.exit(main())
