"""Multi-token prediction with context parallelism: its gradients and its log are means of the
ranks' means.

megatron-core 0.19.2, two ranks over gloo, no GPU. process_mtp_loss divides by the number of
targets that roll_tensor counts on its own rank, and with calculate_per_token_loss it multiplies by
that of the main loss on this rank. A row of eight tokens has three targets at the further depth,
two on one rank and one on the other; before they are rolled it is the other way round. Gradients
of both ranks are averaged, as DistributedDataParallel does, or with calculate_per_token_loss
summed and divided by all targets, as finalize_model_grads does. With --control each rank has one
target, before and after they are rolled.

    python mtp-mean-of-shard-means.py
"""

import sys
import tempfile
from pathlib import Path

import torch
from megatron.core.transformer.multi_token_prediction import process_mtp_loss
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import Tensor, multiprocessing
from torch import distributed as dist

# The loss of each place at the further depth is w times its number.
NUMBERS = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]])
TARGETS = [1, 3] if "--control" in sys.argv else [5, 6, 7]
MASK = torch.zeros(1, 8).index_fill(1, torch.tensor(TARGETS), 1.0)


def gradient(group: dist.ProcessGroup, *, per_token: bool) -> float:
    w = torch.ones((), requires_grad=True)
    batch = {"numbers": NUMBERS.clone(), "loss_mask": MASK.clone()}
    batch = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=group)
    ahead = (w * batch["numbers"]).T[:, :, None]
    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        mtp_num_layers=1,
        mtp_loss_scaling_factor=1.0,
        calculate_per_token_loss=per_token,
    )
    # The head is the identity, and the loss what comes in. Nothing is logged.
    loss: Tensor = process_mtp_loss(
        hidden_states=torch.cat((torch.zeros_like(ahead), ahead)),
        labels=torch.zeros_like(batch["loss_mask"]),
        loss_mask=batch["loss_mask"],
        output_layer=lambda hidden, **_: (hidden, None),
        output_weight=None,
        runtime_gather_output=None,
        is_training=False,
        compute_language_model_loss=lambda _, logits: logits[:, :, 0].T,
        config=config,
        cp_group=group,
    )
    loss.sum().backward()
    assert w.grad is not None
    dist.all_reduce(w.grad, group=group)
    return (w.grad / (MASK.sum() if per_token else group.size())).item()


def rank(index: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    torch.cuda.current_device = lambda: torch.device("cpu")
    alone = [dist.new_group([each]) for each in range(2)]
    wrong = ""
    for per_token in (False, True):
        expected = gradient(alone[index], per_token=per_token)
        got = gradient(dist.group.WORLD, per_token=per_token)
        if index == 0:
            print(f"calculate_per_token_loss={per_token}")
            print(f"expected gradient {expected:.6f}  (context_parallel_size 1)")
            print(f"got      gradient {got:.6f}  (context_parallel_size 2)")
            wrong += "1" if abs(expected - got) > 1e-6 else ""
    if index == 0:
        Path(folder, "wrong").write_text(wrong)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank, (folder,), nprocs=2)
        sys.exit(bool(Path(folder, "wrong").read_text()))
