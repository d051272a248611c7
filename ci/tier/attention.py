"""Which fused attention runs on a device, forward and backward, and how far off it is.

    python ci/tier/attention.py cuda

tries, for each dtype, head size, mask and with shared kv heads or without, each of torch's own
implementations and the one that torch takes by itself; then torch's kernel for rows end to end.
It prints JSON. What is tried has the shapes that the harness gives: see `kernels.py`.
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
# One implementation, or the one that torch takes.
Backend = SDPBackend | None
Tensors = list[Tensor]
Told = dict[str, Any]


def main() -> None:
    found, broken = list[Told](), ""
    try:
        # What came before an exception stays.
        found.extend(combinations(sys.argv[1]))
    except torch.AcceleratorError as error:
        # After this one the device says nothing but this.
        broken = first_line(error)
    except KeyboardInterrupt:
        broken = "cut off"
    raised = [each for each in found if each["error"] and each["kernel"] == BY_ITSELF]
    print(json.dumps({"attention": found, "raised": raised, "broken": broken}, indent=1))


def combinations(device: str) -> Iterator[Told]:
    for dtype, size, mask, shared in product(TORCH_DTYPES, SIZES, MASKS, (False, True)):
        case = {"dtype": dtype, "head size": size, "mask": mask, "shared kv heads": shared}
        inputs = heads(device, dtype, size, KV_HEADS if shared else HEADS)
        own = partial(fused, mask)
        exact = run(own, [x.double() for x in inputs], SDPBackend.MATH)
        yield {
            **case,
            "kernel": BY_ITSELF,
            "took": took(mask, inputs),
            **tried(own, inputs, exact),
        }
        for name, backend in BACKENDS.items():
            yield {**case, "kernel": name, **tried(own, inputs, exact, backend)}
        if device == "cuda" and dtype in HALF and mask != "mask":
            yield {**case, "kernel": "varlen", **tried(partial(rows, mask), inputs, exact)}


def heads(device: str, dtype: str, size: int, kv_heads: int) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, count, TOKENS, size, generator=generator).to(device, TORCH_DTYPES[dtype])
        for count in (HEADS, kv_heads, kv_heads)
    ]


def arguments(mask: str, q_MSH: Tensor, k_CSH: Tensor) -> Told:
    whole_SS = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=q_MSH.device).tril()
    kinds = {"causal": None, "window": whole_SS.triu(-4), "mask": whole_SS}
    shared = q_MSH.shape[1] != k_CSH.shape[1]
    return {"attn_mask": kinds[mask], "is_causal": mask == "causal", "enable_gqa": shared}


def fused(mask: str, q_MSH: Tensor, k_CSH: Tensor, v_CSH: Tensor) -> Tensor:
    options = arguments(mask, q_MSH, k_CSH)
    return F.scaled_dot_product_attention(q_MSH, k_CSH, v_CSH, **options)


def rows(mask: str, *inputs: Tensor) -> Tensor:
    """As one row of a stream."""
    ends = torch.tensor([0, TOKENS], dtype=torch.int32, device=inputs[0].device)
    segments = Segments(ends, 5 if mask == "window" else None)
    q_TMH, k_TCH, v_TCH = (x[0].transpose(0, 1) for x in inputs)
    return varlen(q_TMH, k_TCH, v_TCH, segments).transpose(0, 1)[None]


def run(attend: Attention, inputs: Tensors, by: Backend = None) -> Tensors:
    """The output and the gradients."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with sdpa_kernel(by) if by else nullcontext():
        out = attend(*leaves)
        out.backward(torch.ones_like(out))
    return [x.detach().double() for x in (out, *(x.grad for x in leaves)) if x is not None]


def tried(attend: Attention, inputs: Tensors, exact: Tensors, by: Backend = None) -> Told:
    """How far off, as a share of the largest number that is right; or how it failed."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            pairs = zip(run(attend, inputs, by), exact, strict=True)
            off = [float((one - other).abs().max() / other.abs().max()) for one, other in pairs]
        except torch.AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001 - what is wanted is to know it
            # Why none would do, torch tells in warnings.
            why = sorted({str(warning.message).partition(" (")[0] for warning in told})
            return {"error": first_line(error), "off": None, "why": why}
    return {"error": "", "off": max(off)}


def took(mask: str, inputs: list[Tensor]) -> str:
    """Whom torch would choose: it says so only in private."""
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
