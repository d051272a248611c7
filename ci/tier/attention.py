"""Find out which fused attention runs on a device, forward and backward, and how far off it is.

    python ci/tier/attention.py cuda

tries each of torch's implementations, the one that torch chooses by itself, and torch's kernel for
packed rows, for every dtype, head size and mask, with shared kv heads and without. It prints JSON.
The shapes are those that the harness uses: see `kernels.py`.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.kernels import varlen
from harness.reference import TORCH_DTYPES

SIZES = (4, 8, 16, 32, 64, 128)
MASKS = ("causal", "window", "mask")
TOKENS, HEADS, KV_HEADS = 37, 4, 2
BY_ITSELF = "by itself"
BACKENDS = {
    name: getattr(SDPBackend, name)
    for name in ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
}
HALF = ("bf16", "fp16")

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
# One implementation; None lets torch choose.
Backend = SDPBackend | None
Tensors = list[Tensor]
Record = dict[str, Any]


def main() -> None:
    records, broken = list[Record](), ""
    try:
        # `extend` keeps the records from before an exception.
        records.extend(combinations(sys.argv[1]))
    except torch.AcceleratorError as error:
        # After it, every call to the device raises this error.
        broken = first_line(error)
    except KeyboardInterrupt:
        broken = "cut off"
    raised = [record for record in records if record["error"] and record["kernel"] == BY_ITSELF]
    print(json.dumps({"attention": records, "raised": raised, "broken": broken}, indent=1))


def combinations(device: str) -> Iterator[Record]:
    """Try every kernel on every combination of dtype, head size, mask and kv heads."""
    for dtype, size, mask, shared in product(TORCH_DTYPES, SIZES, MASKS, (False, True)):
        case = {"dtype": dtype, "head size": size, "mask": mask, "shared kv heads": shared}
        inputs = heads(device, dtype, size, KV_HEADS if shared else HEADS)
        own = partial(fused, mask)
        exact = run(own, [x.double() for x in inputs], SDPBackend.MATH)
        yield {
            **case,
            "kernel": BY_ITSELF,
            "took": chosen_backend(mask, inputs),
            **attempt(own, inputs, exact),
        }
        for name, backend in BACKENDS.items():
            yield {**case, "kernel": name, **attempt(own, inputs, exact, backend)}
        if device == "cuda" and dtype in HALF and mask != "mask":
            yield {**case, "kernel": "varlen", **attempt(partial(packed, mask), inputs, exact)}


def heads(device: str, dtype: str, size: int, kv_heads: int) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, count, TOKENS, size, generator=generator).to(device, TORCH_DTYPES[dtype])
        for count in (HEADS, kv_heads, kv_heads)
    ]


def arguments(mask: str, q_MSH: Tensor, k_CSH: Tensor) -> dict[str, Any]:
    whole_SS = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=q_MSH.device).tril()
    kinds = {"causal": None, "window": whole_SS.triu(-4), "mask": whole_SS}
    shared = q_MSH.shape[1] != k_CSH.shape[1]
    return {"attn_mask": kinds[mask], "is_causal": mask == "causal", "enable_gqa": shared}


def fused(mask: str, q_MSH: Tensor, k_CSH: Tensor, v_CSH: Tensor) -> Tensor:
    options = arguments(mask, q_MSH, k_CSH)
    return F.scaled_dot_product_attention(q_MSH, k_CSH, v_CSH, **options)


def packed(mask: str, *inputs: Tensor) -> Tensor:
    """Attend with the kernel for packed rows, to a stream of one row."""
    ends = torch.tensor([0, TOKENS], dtype=torch.int32, device=inputs[0].device)
    segments = Segments(ends, 5 if mask == "window" else None)
    q_TMH, k_TCH, v_TCH = (x[0].transpose(0, 1) for x in inputs)
    return varlen(q_TMH, k_TCH, v_TCH, segments).transpose(0, 1)[None]


def run(attend: Attention, inputs: Tensors, by: Backend = None) -> Tensors:
    """Return the output and the gradients of the inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with sdpa_kernel(by) if by else nullcontext():
        out = attend(*leaves)
        out.backward(torch.ones_like(out))
    return [x.detach().double() for x in (out, *(x.grad for x in leaves)) if x is not None]


def attempt(attend: Attention, inputs: Tensors, exact: Tensors, by: Backend = None) -> Record:
    """Return the error, relative to the largest exact number; or the exception, and why.

    An `AcceleratorError` is raised, since the device is of no use afterwards.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            pairs = zip(run(attend, inputs, by), exact, strict=True)
            off = [float((one - other).abs().max() / other.abs().max()) for one, other in pairs]
        except torch.AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001 - the exception is the result
            # torch warns why it refused each implementation.
            why = sorted({str(warning.message).partition(" (")[0] for warning in caught})
            return {"error": first_line(error), "off": None, "why": why}
    return {"error": "", "off": max(off)}


def chosen_backend(mask: str, inputs: list[Tensor]) -> str:
    """Return the name of the implementation that torch chooses, or the error of asking for it."""
    try:
        choose: Any = torch._fused_sdp_choice  # noqa: SLF001 - there is no public way
        leaves = [x.detach().requires_grad_() for x in inputs]
        return SDPBackend(choose(*leaves, **arguments(mask, *leaves[:2]))).name
    except (AttributeError, RuntimeError, ValueError) as error:
        return first_line(error)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


if __name__ == "__main__":
    main()
