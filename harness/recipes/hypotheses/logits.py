"""What a step can do wrong with logits, between its head and its loss.

Legend: B rows, S columns, V vocabulary; any dims may come before V where it stands alone.
"""

from functools import partial

from torch import Tensor
from torch.nn import functional as F

from harness.case import Case
from harness.recipes.batch import Batch
from harness.recipes.hypothesis import Hypothesis, by_columns, is_edge

# Those that people sample with; a step with another one gets no name.
TEMPERATURES = (0.6, 0.7, 0.8, 0.9)
# Kernels read a vocabulary in tiles of such sizes, and weights are padded to a multiple of them.
TILES = (8, 16, 64, 128)


def of_logits() -> list[Hypothesis]:
    return [
        *(
            Hypothesis(
                "logits-scaled",
                f"logits are {how} by {temperature}",
                logits=partial(_times, factor=temperature**power),
            )
            for temperature in TEMPERATURES
            for how, power in (("divided", -1), ("multiplied", 1))
        ),
        Hypothesis(
            "statistic-per-rank",
            "what the last token of a row says is added up over the last tokens of its shards",
            logits=_with_last_of_shards,
        ),
        *(
            Hypothesis(
                "pad-leak",
                f"the vocabulary is padded to tiles of {tile}, and the padding's zeros count",
                logits=partial(_with_zeros, tile=tile),
            )
            for tile in TILES
        ),
    ]


def _times(logits_V: Tensor, batch: Batch, case: Case, *, factor: float) -> Tensor:
    del batch, case
    return logits_V * factor


def _with_zeros(logits_V: Tensor, batch: Batch, case: Case, *, tile: int) -> Tensor:
    del batch, case
    return F.pad(logits_V, (0, -logits_V.shape[-1] % tile))


def _with_last_of_shards(logits_BSV: Tensor, batch: Batch, case: Case) -> Tensor:
    real_BS, shard_BS = batch["attention_mask"].bool(), by_columns(batch, case)
    if logits_BSV.shape[:-1] != real_BS.shape:
        return logits_BSV
    is_next_real_BS = F.pad(real_BS[:, 1:], (0, 1))
    is_last_BS = real_BS & ~is_next_real_BS
    is_last_of_shard_BS = is_last_BS | real_BS & F.pad(is_edge(shard_BS)[:, 1:], (0, 1))
    total_B1V = (logits_BSV * is_last_of_shard_BS[..., None]).sum(1, keepdim=True)
    return logits_BSV.where(~is_last_BS[..., None], total_B1V)
