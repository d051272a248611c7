"""Something computed or sent in a shorter format."""

from dataclasses import replace

import torch
from torch import Tensor

from harness.diagnosis.forward import Heads, Pass, Variants

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
NAME = "low-precision"


def formats(plain: Pass) -> Variants:
    """Logits, or what attention exchanges."""
    for format_name, dtype in FORMATS.items():

        def short(x: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return x.to(dtype).to(x.dtype)

        def of_all(given: Heads, dtype: torch.dtype = dtype) -> Heads:
            q, k, v = (x.to(dtype).to(x.dtype) for x in given)
            return q, k, v

        yield NAME, f"logits in {format_name}", replace(plain, read=short)
        yield NAME, f"queries, keys and values in {format_name}", replace(plain, before=of_all)
        yield NAME, f"attention's output in {format_name}", replace(plain, after=short)
        yield (
            NAME,
            f"all that attention exchanges in {format_name}",
            replace(plain, before=of_all, after=short),
        )


ALL = (formats,)
