"""areal's whole engine for supervised training: batches, packing, Ulysses, FSDP2, loss, log."""

from functools import partial

from harness.candidates.published.areal.engine import Options, train
from harness.candidates.published.library import Step

STEPS: dict[str, Step] = {
    "sft": partial(train, Options()),
    "sft-sdpa": partial(train, Options(attention="sdpa")),
}
