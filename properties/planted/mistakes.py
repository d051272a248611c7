"""The tutorial's candidate with one tensor on the wrong device, in each part of the step.

On a CPU all variants pass. On a GPU, or under `--device pretend`, each raises an error.
"""

from typing import NamedTuple

from properties.helpers.shown import shown

TWO = "expected all tensors to be on the same device, but got cuda:0 and cpu"


class Mistake(NamedTuple):
    """One replacement in the tutorial's code, and the error that it causes on a GPU."""

    right: str
    wrong: str
    said: str


MISTAKES = {
    "ids": Mistake("model(ids, ", "model(ids.cpu(), ", f"aten.embedding: {TWO}"),
    "positions": Mistake(
        "ids, positions, attend,", "ids, positions.cpu(), attend,", f"aten.mul: {TWO}"
    ),
    "padding": Mistake(
        "torch.arange(pad, device=rank.device)", "torch.arange(pad)", f"aten.cat: {TWO}"
    ),
    "labels": Mistake("= ids.roll(-1)", "= ids.roll(-1).cpu()", f"aten.nll_loss_forward: {TWO}"),
    "loss mask": Mistake("counts.roll(-1)\n", "counts.roll(-1).cpu()\n", f"aten.mul: {TWO}"),
    "model": Mistake(", rank.device)\n", ")\n", f"aten.embedding: {TWO}"),
    "attention mask": Mistake(
        "& (back >= 0)",
        "& torch.ones(len(row), len(row), dtype=torch.bool).tril()",
        f"aten.bitwise_and: {TWO}",
    ),
    "exchange": Mistake(
        "torch.empty_like(x)", "torch.empty(x.shape, dtype=x.dtype)", f"c10d.alltoall_base_: {TWO}"
    ),
    "loss count": Mistake(
        "(nll * counts).sum() / total",
        "(nll * counts / torch.full(nll.shape, total)).sum()",
        f"aten.div: {TWO}",
    ),
    "reduction": Mistake(
        "            dist.all_reduce(parameter.grad, group=rank.world)\n",
        "            dist.all_reduce(whole := parameter.grad.cpu(), group=rank.world)\n"
        "            parameter.grad = whole\n",
        f"Tensor.grad: {TWO}",
    ),
}


def tutorial(*changes: tuple[str, str]) -> str:
    """Return the tutorial's code with replacements."""
    return shown("writing-a-candidate.md", *changes)
