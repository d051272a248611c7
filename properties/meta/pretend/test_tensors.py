"""Tensors of a pretended GPU behave as on a real one, also inside torch."""

import copy
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from harness.case import parse
from harness.pretend import pretend_gpu, tensors_made
from harness.reference import TORCH_DTYPES, reference
from properties.helpers.groups import group_of_one
from properties.planted.mistakes import TWO

CASE = parse("case/1 rows=5:11011,4:1111:left,1:1 heads=4/2 layers=2 vocab=11 window=3 steps=2")


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    with pretend_gpu() as device:
        yield device


@pytest.fixture
def x(gpu: torch.device) -> Tensor:
    return torch.arange(6.0, device=gpu).view(2, 3)


def by_default() -> Tensor:
    with torch.device("cuda"):
        return torch.zeros(2)


MAKES: dict[str, Callable[[], Tensor]] = {
    "a factory": lambda: torch.zeros(2, device="cuda"),
    "a list": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "a copy": lambda: torch.zeros(2).to("cuda:0"),
    "a number": lambda: torch.zeros(2).to(0),
    "a method": lambda: torch.zeros(2).pin_memory().cuda(non_blocking=True),
    "a likeness": lambda: torch.zeros(2, device="cuda").new_tensor([1.0]),
    "a default": by_default,
    "a module": lambda: nn.Linear(2, 2).cuda().weight,
    "a module made there": lambda: nn.Linear(2, 2, device="cuda").weight,
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("way", MAKES)
def test_every_way_to_make_a_tensor_on_the_gpu_works(way: str) -> None:
    before = tensors_made()
    tensor = MAKES[way]()
    assert (str(tensor.device), tensor.is_cuda, tensor.get_device()) == ("cuda:0", True, 0)
    assert tensors_made() > before


REFUSED: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "a product": (lambda x: x @ torch.ones(3, 2), f"aten.mm: {TWO}"),
    "a sum": (lambda x: x + torch.ones(3), f"aten.add: {TWO}"),
    "a sum on the CPU": (lambda x: torch.zeros(()).add_(x.sum()), f"aten.add_: {TWO}"),
    "a list": (lambda x: torch.stack([x[0, 0], torch.tensor(1.0)]), f"aten.stack: {TWO}"),
    "a table": (
        lambda x: nn.functional.embedding(torch.tensor([0]), x), f"aten.embedding: {TWO}",
    ),
    "an index of a CPU tensor": (
        lambda x: torch.zeros(6)[x.long().flatten()], f"aten.index: {TWO}",
    ),
    "values by index": (
        lambda x: x.index_put_((torch.tensor([0]),), torch.ones(1, 3)), f"aten.index_put_: {TWO}",
    ),
    "a gradient": (lambda x: setattr(x, "grad", torch.ones(2, 3)), f"Tensor.grad: {TWO}"),
    "numpy": (lambda x: x.numpy(), "can't convert cuda:0 device type tensor to numpy"),
    "an array": (np.asarray, "can't convert cuda:0 device type tensor to numpy"),
    "another GPU": (lambda x: x.to("cuda:1"), "cuda:1: invalid device ordinal"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_an_operation_with_tensors_of_two_devices_is_refused(x: Tensor, mistake: str) -> None:
    act, message = REFUSED[mistake]
    with pytest.raises((RuntimeError, TypeError), match=message.replace("(", r"\(")):
        act(x)


def on_a_stream(x: Tensor) -> Tensor:
    with torch.cuda.stream(torch.cuda.Stream()):
        doubled = x * 2
    torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
    torch.cuda.synchronize()
    return doubled


TAKEN: dict[str, Callable[[Tensor], object]] = {
    "a number": lambda x: x * torch.tensor(2.0),
    "a number to fill with": lambda x: x.masked_fill(x > 2, torch.tensor(0.0)),
    "an index": lambda x: x[torch.tensor([1])],
    "an index in a list": lambda x: x[[1, 0], :],
    "a mask": lambda x: x[torch.tensor([True, False])],
    "values": lambda x: x.index_put_((torch.tensor([1]),), torch.tensor(7.0)),
    "a copy": lambda x: x.copy_(torch.ones(2, 3)),
    "a copy back": lambda x: torch.zeros(2, 3).copy_(x),
    "a part of a buffer": lambda x: torch.zeros(3).index_fill_(
        0, torch.tensor([1]), x[1, 1].item()
    ),
    "numbers in a list": lambda x: torch.tensor([x[1, 1], 2.0]),
    "a view in place": lambda x: x.clone().t_().add_(1),
    "an update of a part": lambda x: x[0].add_(1),
    "a list": lambda x: torch.tensor(x.tolist()),
    "text": lambda x: torch.tensor(float(f"{x[1, 1]:.1f}")),
    "a stream": on_a_stream,
    "map": torch.vmap(torch.square),
}


@pytest.mark.parametrize("operation", TAKEN)
def test_an_operation_that_a_gpu_accepts_gives_the_result_of_the_cpu(
    x: Tensor, operation: str
) -> None:
    given = x.cpu()
    found, expected = TAKEN[operation](x), TAKEN[operation](given.clone())
    assert isinstance(found, Tensor)
    assert isinstance(expected, Tensor)
    assert torch.equal(found.cpu(), expected)


def test_a_histogram_counts_integers_as_on_a_gpu(x: Tensor) -> None:
    assert torch.histc(x.int(), bins=4, min=0, max=3).cpu().tolist() == [1, 1, 1, 1]


def test_a_model_that_is_moved_keeps_its_parameters(gpu: torch.device) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    assert model.to(gpu)[0].weight is model.cuda()[1].weight
    before = copy.deepcopy(model)[0].weight
    model(torch.ones(1, 2, device=gpu)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    weight = model[0].weight
    assert isinstance(before, Tensor)
    assert isinstance(weight, Tensor)
    assert weight.grad is not None
    with torch.no_grad():
        weight -= weight.grad
    assert not torch.equal(before, weight)
    weight.data = weight.data.cpu()
    assert weight.device.type == "cpu"
    weight.data = weight.data.to(gpu)
    assert weight.is_cuda
    assert weight.to(gpu) is weight


@pytest.mark.filterwarnings("ignore:.* is deprecated:FutureWarning")
def test_collectives_work_over_gloo(x: Tensor) -> None:
    received, pieces = torch.empty_like(x), [torch.empty_like(x)]
    with group_of_one():
        dist.all_to_all_single(received, x)
        assert torch.equal(received, x)
        dist.all_reduce(received)
        dist.broadcast(received, 0)
        dist.reduce(received, 0)
        dist.all_gather(pieces, x)
        dist.gather(x, pieces)
        dist.scatter(received, pieces)
        dist.all_gather_into_tensor(received, x)
        dist.reduce_scatter_tensor(received, x)
        assert torch.equal(received, x)
        with pytest.raises(RuntimeError, match=rf"c10d.alltoall_base_: {TWO}"):
            dist.all_to_all_single(torch.empty(2, 3), x)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
def test_plain_training_has_the_same_result_on_the_pretended_gpu(dtype: str) -> None:
    on_cpu = reference(CASE, TORCH_DTYPES[dtype], traced=True)
    before = tensors_made()
    with pretend_gpu() as gpu:
        on_gpu = reference(CASE, TORCH_DTYPES[dtype], traced=True, device=str(gpu))
    assert tensors_made() > before + 500
    assert list(on_gpu) == list(on_cpu)
    assert all(np.array_equal(on_gpu[key].values, on_cpu[key].values) for key in on_cpu)


def test_after_the_block_the_pretended_gpu_is_gone() -> None:
    with pretend_gpu():
        assert torch.cuda.is_available()
    assert torch.zeros(1).device.type == "cpu"
    assert torch.cuda.is_available() is (torch.cuda.device_count() > 0)
