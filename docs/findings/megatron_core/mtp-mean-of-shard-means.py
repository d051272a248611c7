"""Multi-token prediction with context parallelism: its gradients and its log are means of the
ranks' means.

megatron-core 0.16.1, two ranks over gloo, no GPU. GPTModel._postprocess divides by the number
of targets that roll_tensor counts on its own rank. A row of eight tokens has two of them at the
further depth, and both ranks' gradients are averaged, as DistributedDataParallel does.

    python mtp-mean-of-shard-means.py
"""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import Tensor, multiprocessing
from torch import distributed as dist

# The loss of each place at the further depth is w times its number.
NUMBERS = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]])
MASK = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]])
CONFIG = SimpleNamespace(
    mtp_num_layers=1,
    mtp_loss_scaling_factor=1.0,
    calculate_per_token_loss=False,
    config_logger_dir="",
)


def gradient(group: dist.ProcessGroup) -> float:
    parallel_state._DATA_PARALLEL_GROUP_WITH_CP = group
    w = torch.ones((), requires_grad=True)
    batch = {"numbers": NUMBERS.clone(), "loss_mask": MASK.clone()}
    batch = get_batch_on_this_cp_rank(batch, group)
    ahead = (w * batch["numbers"]).T[:, :, None]
    # What _postprocess asks of a model: its head is the identity, its loss what comes in.
    model = SimpleNamespace(
        config=CONFIG,
        training=True,
        post_process=True,
        share_embeddings_and_output_weights=False,
        cp_group=group,
        output_layer=lambda hidden, **_: (hidden, None),
        compute_language_model_loss=lambda _, logits: logits[:, :, 0].T,
    )
    loss: Tensor = GPTModel._postprocess(
        model,
        hidden_states=torch.cat((torch.zeros_like(ahead), ahead)),
        input_ids=None,
        position_ids=None,
        labels=torch.zeros_like(batch["loss_mask"]),
        rotary_pos_emb=None,
        rotary_pos_cos=None,
        rotary_pos_sin=None,
        mtp_in_postprocess=False,
        loss_mask=batch["loss_mask"],
    )
    loss.sum().backward()
    assert w.grad is not None
    dist.all_reduce(w.grad, group=group)
    return (w.grad / group.size()).item()


def rank(index: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    torch.cuda.current_device = lambda: torch.device("cpu")
    alone = [dist.new_group([each]) for each in range(2)]
    expected = gradient(alone[index])
    got = gradient(dist.group.WORLD)
    if index == 0:
        print(f"expected gradient {expected:.6f}  (context_parallel_size 1)")
        print(f"got      gradient {got:.6f}  (context_parallel_size 2)")
        Path(folder, "wrong").write_text("" if abs(expected - got) < 1e-6 else "1")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank, (folder,), nprocs=2)
        sys.exit(bool(Path(folder, "wrong").read_text()))
