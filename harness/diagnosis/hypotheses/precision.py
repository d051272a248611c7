"""Values that are computed or sent in a shorter format."""

from dataclasses import replace

import torch
from torch import Tensor

from harness.diagnosis.forward import QKV, Pass, Variants

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
NAME = "low-precision"


def formats(plain: Pass) -> Variants:
    """Yield passes with short logits, or a short exchange around attention."""
    for format_name, dtype in FORMATS.items():

        def shorten(x: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return x.to(dtype).to(x.dtype)

        def shorten_qkv(qkv: QKV, dtype: torch.dtype = dtype) -> QKV:
            q, k, v = (x.to(dtype).to(x.dtype) for x in qkv)
            return q, k, v

        yield NAME, f"logits in {format_name}", replace(plain, change_logits=shorten)
        yield (
            NAME,
            f"queries, keys and values in {format_name}",
            replace(plain, change_qkv=shorten_qkv),
        )
        yield (
            NAME,
            f"attention's output in {format_name}",
            replace(plain, change_output=shorten),
        )
        yield (
            NAME,
            f"all that attention exchanges in {format_name}",
            replace(plain, change_qkv=shorten_qkv, change_output=shorten),
        )


ALL = (formats,)
