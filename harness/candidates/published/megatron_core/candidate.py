"""Steps of Megatron-Core's GPT over ranks that share a sequence."""

from functools import partial
from typing import Any

from harness.candidates.published.library import Step
from harness.candidates.published.megatron_core import hybrid
from harness.candidates.published.megatron_core.batch import pack, table
from harness.candidates.published.megatron_core.trainer import Options, step

true_ends = partial(pack, padded_ends=False)
padded_ends = partial(pack, padded_ends=True)


def of(cut: Any, **options: Any) -> Step:
    """Return the step with these options of a user of Megatron-LM."""
    return partial(step, options=Options(cut=cut, **options))


STEPS: dict[str, Step] = {
    "gpt": of(table),
    "gpt-per-token": of(table, per_token=True),
    "gpt-legacy": of(table, legacy=True),
    "gpt-collective": of(table, ddp={"average_in_collective": True}),
    "gpt-overlap": of(table, per_token=True, ddp={"overlap_grad_reduce": True}),
    "gpt-sharded": of(table, per_token=True, ddp={"use_distributed_optimizer": True}),
    "packed": of(padded_ends),
    "packed-per-token": of(padded_ends, per_token=True),
    "packed-ends": of(true_ends, per_token=True),
    "hybrid": of(hybrid.cut, per_token=True, hybrid=True, replicas=True),
    "hybrid-cp": of(hybrid.cut, per_token=True, hybrid=True),
    "mtp": of(table, ahead=True),
    "mtp-per-token": of(table, ahead=True, per_token=True),
    "mtp-packed": of(padded_ends, ahead=True),
    "mtp-packed-per-token": of(padded_ends, ahead=True, per_token=True),
    "mtp-packed-ends": of(true_ends, ahead=True, per_token=True),
    "mtp-hybrid": of(hybrid.cut, ahead=True, per_token=True, hybrid=True, replicas=True),
}
