"""Functions of 0.1.12 that the wiring needs and older releases lack."""

from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup
from veomni.distributed import parallel_state
from veomni.distributed.sequence_parallel import gather_heads_scatter_seq, gather_seq_scatter_heads


def prepare_ulysses_qkv(
    query: Tensor, key: Tensor, value: Tensor, *, group: ProcessGroup, ulysses_size: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Do what `flash_attention_forward` does until 0.1.11, among lines for a GPU."""
    heads, kv_heads = query.shape[2], key.shape[2]
    if ulysses_size > kv_heads:
        key, value = (x.repeat_interleave(ulysses_size // kv_heads, 2) for x in (key, value))
    query, key, value = (
        gather_seq_scatter_heads(x.squeeze(0), seq_dim=0, head_dim=1, group=group).unsqueeze(0)
        for x in (query, key, value)
    )
    return query, key, value, heads


def restore_ulysses_output(output: Tensor, *, group: ProcessGroup) -> Tensor:
    restored: Tensor = gather_heads_scatter_seq(
        output.squeeze(0), seq_dim=0, head_dim=1, group=group
    )
    return restored.unsqueeze(0)


def init_parallel_state(**options: Any) -> Any:
    """Reset the state, of which there is only one until 0.1.11; a case may need another."""
    options.pop("name")
    parallel_state._PARALLEL_STATE = None
    parallel_state.init_parallel_state(**options)
    return parallel_state.get_parallel_state()
