"""What a step or plain training comes to: a loss, metrics, and gradients that may be sharded."""

from typing import TYPE_CHECKING, Any

from torch import Tensor, as_tensor, float64, nn, zeros_like
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.trace import GRADIENT, METRIC

if TYPE_CHECKING:
    from harness.rank import Emit

Metrics = dict[str, Tensor]
WANTED = "return the loss, a tensor or a number, or a pair of that and a dict of metrics"
# FSDP, torch.compile and activation checkpointing put these into names of parameters.
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def parted(result: Any) -> tuple[Tensor, Metrics]:
    """Split what a loss or a step returned -> the loss, its metrics."""
    if not isinstance(result, tuple):
        return result, {}
    if len(result) != 2 or not isinstance(result[1], dict):
        raise TypeError(f"a tuple of {len(result)} was returned; {WANTED}")
    return result


def number(value: Any, what: str) -> Tensor:
    """Return a loss or a metric as a tensor; raise `TypeError` if it is no number."""
    if isinstance(value, (float, int)):
        return as_tensor(value, dtype=float64)
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} is {type(value).__name__}; {WANTED}")
    return value.detach().reshape(())


def silent(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
    """Emit nothing."""


def is_traced(emit: "Emit") -> bool:
    """Return whether the outputs of modules are wanted."""
    return bool(getattr(emit, "traced", False))


def emit_result(model: nn.Module, result: Any, emit: "Emit") -> None:
    """Emit a loss, its metrics, and the gradient of each parameter, as they have become."""
    loss, metrics = parted(result)
    emit("loss", number(loss, "the loss that was returned"))
    for name, value in metrics.items():
        emit(f"{METRIC}{name}", number(value, f"the metric {name}"))
    for name, parameter in model.named_parameters():
        # A frozen parameter has a gradient of zeros, so that a step which trains it is found out.
        gradient = zeros_like(parameter) if parameter.grad is None else parameter.grad
        emit(f"{GRADIENT}{plain_name(name)}", whole(gradient))


def plain_name(name: str) -> str:
    """Return the name of a parameter without the parts that wrappers add."""
    for part in WRAPPERS:
        name = name.replace(part, "")
    return name


def whole(tensor: Any) -> Tensor:
    """Return all of a tensor that may be sharded."""
    if hasattr(tensor, "full_tensor"):
        device, group = tensor.device, tensor.device_mesh.get_group(0)
        if device.type != "cpu" and dist.get_backend(group) == "gloo":
            # On a GPU gloo crashes in what `full_tensor` calls: pytorch#152645.
            tensor = on_host(tensor)
        tensor = tensor.full_tensor().to(device)
    full: Tensor = tensor.detach()
    return full


def on_host(tensor: Any) -> Any:
    """Return a DTensor that has the same pieces in the memory of the host."""
    # An import of a second, for which only a sharded step waits.
    from torch.distributed.tensor import DTensor

    mesh = tensor.device_mesh
    mesh = DeviceMesh.from_group(
        mesh.get_all_groups(), "cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names
    )
    sizes = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(tensor.to_local().cpu(), mesh, tensor.placements, **sizes)
