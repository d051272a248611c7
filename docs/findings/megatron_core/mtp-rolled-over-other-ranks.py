"""Multi-token prediction under hybrid context parallelism rolls over the static group.

megatron-core 0.16.1, two ranks over gloo, no GPU. hybrid_context_parallel cuts a row of eight
tokens over two ranks; context_parallel_size is 1. Printed are the labels for which
GPTModel._postprocess computes the loss of the further depth, on rank 0.

    python mtp-rolled-over-other-ranks.py
"""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import Tensor, multiprocessing
from torch import distributed as dist

CONFIG = SimpleNamespace(
    mtp_num_layers=1,
    mtp_loss_scaling_factor=1.0,
    calculate_per_token_loss=True,
    config_logger_dir="",
)


def labels_ahead(packed: PackedSeqParams, labels: Tensor, static: dist.ProcessGroup) -> Tensor:
    """Those whose loss GPTModel computes before the main one."""
    parallel_state._DATA_PARALLEL_GROUP_WITH_CP = dist.group.WORLD
    seen: list[Tensor] = []

    def loss(labels: Tensor, logits: Tensor) -> Tensor:
        seen.append(labels)
        return logits[:, :, 0].T

    # What _postprocess asks of a model.
    model = SimpleNamespace(
        config=CONFIG,
        training=True,
        post_process=True,
        share_embeddings_and_output_weights=False,
        cp_group=static,
        output_layer=lambda hidden, **_: (hidden, None),
        compute_language_model_loss=loss,
    )
    GPTModel._postprocess(
        model,
        hidden_states=torch.zeros(2 * labels.shape[1], 1, 1),
        input_ids=None,
        position_ids=None,
        labels=labels,
        rotary_pos_emb=None,
        rotary_pos_cos=None,
        rotary_pos_sin=None,
        mtp_in_postprocess=False,
        packed_seq_params=packed,
    )
    return seen[0]


def rank(index: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    torch.cuda.current_device = lambda: torch.device("cpu")
    alone = [dist.new_group([each]) for each in range(2)]
    # As get_batch_on_this_hybrid_cp_rank makes them, which needs a GPU for their lengths.
    ends = torch.tensor([0, 8])
    packed = PackedSeqParams(
        qkv_format="sbhd", cu_seqlens_q=ends, local_cp_size=2, cp_group=dist.group.WORLD
    )
    batch = {"labels": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9]])}
    batch = get_batch_on_this_cp_rank(batch, packed.cp_group)
    expected = torch.tensor([[3, 4, 9, 0]])
    got = labels_ahead(packed, batch["labels"], alone[index])
    if index == 0:
        print(f"expected {expected.tolist()}")
        print(f"got      {got.tolist()}")
        Path(folder, "wrong").write_text("" if got.equal(expected) else "1")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank, (folder,), nprocs=2)
        sys.exit(bool(Path(folder, "wrong").read_text()))
