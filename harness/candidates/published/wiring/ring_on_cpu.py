"""Run torch's own context parallelism on a CPU, where its ring has no kernel.

The kernel and the way to it are ours: DTensor has no rule for the CPU's kernel, so a rule of ours
hands that kernel to the same ring. Everything else is torch's: which rank sends what to which,
which halves of a balanced stream meet, and how partial results are merged.
"""

from typing import Any

import torch
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
# The dimension of tokens in the ring's own handlers: after rows and heads.
TOKENS = 2


def install() -> None:
    """Add our rules, once in a process, before anything enters `context_parallel`."""
    handlers: dict[Any, Any] = {FORWARD.default: _forward, BACKWARD.default: _backward}
    ring.custom_ops.update(handlers)


def _forward(_: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    query, key, value, *rest = args
    out, sums = ring._templated_ring_attention(
        query.device_mesh.get_group(),
        TOKENS,
        FORWARD,
        query.to_local(),
        key.to_local(),
        value.to_local(),
        dropout_p=_argument(rest, kwargs, 0, "dropout_p", 0.0),
        is_causal=_argument(rest, kwargs, 1, "is_causal", False),
        scale=_scale(kwargs),
    )
    return DTensor._op_dispatcher.wrap((out, sums), [_spec(query, out), _spec(query, sums)])


def _backward(_: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    gradient, query, key, value, out, sums, dropout, is_causal = args
    gradients = ring._templated_ring_attention_backward(
        query.device_mesh.get_group(),
        TOKENS,
        BACKWARD.default,
        grad_out=gradient.to_local(),
        grad_out_name="grad_out",
        query=query.to_local(),
        key=key.to_local(),
        value=value.to_local(),
        out=out.to_local(),
        logsumexp=sums.to_local(),
        is_causal=is_causal,
        dropout_p=dropout,
        scale=_scale(kwargs),
    )
    inputs = query, key, value
    specs = [_spec(each, local) for each, local in zip(inputs, gradients, strict=True)]
    return DTensor._op_dispatcher.wrap(gradients, specs)


def _argument(rest: list[Any], kwargs: dict[str, Any], place: int, name: str, default: Any) -> Any:
    """Return an argument that may come by position or by name."""
    return rest[place] if len(rest) > place else kwargs.get(name, default)


def _scale(kwargs: dict[str, Any]) -> float | None:
    if kwargs.get("attn_mask") is not None:
        # The kernels of GPUs that the ring takes have no such argument.
        raise NotImplementedError("a ring has no mask but the causal one")
    scale: float | None = kwargs.get("scale")
    return scale


def _spec(like: DTensor, local: torch.Tensor) -> DTensorSpec:
    """Return the spec of local pieces along the tokens, which together are the whole."""
    shape = [*local.shape]
    shape[TOKENS] *= like.device_mesh.size()
    whole = torch.empty(shape, dtype=local.dtype, device="meta")
    meta = TensorMeta(whole.shape, whole.stride(), local.dtype)
    return DTensorSpec(like.device_mesh, (Shard(TOKENS),), tensor_meta=meta)
