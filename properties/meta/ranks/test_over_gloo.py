"""What gloo cannot send from a GPU is refused before it is sent."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from harness.ranks.over_gloo import METHODS, NotOverGloo, refuse_over_gloo
from properties.helpers.groups import group_of_one


class OnGpu(Tensor):
    """Says so, and is not."""

    is_cuda = True


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    before = {name: getattr(dist.ProcessGroup, name) for name in METHODS}
    with group_of_one():
        refuse_over_gloo()
        yield
    for name, method in before.items():
        setattr(dist.ProcessGroup, name, method)


SENDS: dict[str, Callable[[Tensor], object]] = {
    "isend": lambda x: dist.isend(x, 0),
    "irecv": lambda x: dist.irecv(x, 0),
    "recv": dist.recv,
    "batch_isend_irecv": lambda x: dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 0)]),
    "all_to_all": lambda x: dist.all_to_all([x], [x]),
}


@pytest.mark.parametrize("name", SENDS)
def test_a_message_from_a_gpu_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(NotOverGloo, match="gloo sends tensors of the host only") as refused:
        SENDS[name](torch.ones(2).as_subclass(OnGpu))
    assert "\n" not in str(refused.value)


def test_what_gloo_can_send_is_sent() -> None:
    received = torch.zeros(2)
    dist.all_to_all_single(received, torch.ones(2))
    assert received.tolist() == [1, 1]
    on_gpu = torch.ones(2).as_subclass(OnGpu)
    dist.all_reduce(on_gpu)
    # A copy on the host may go anywhere.
    with pytest.raises(RuntimeError) as other:
        dist.all_to_all([received], [torch.ones(3)])
    assert not isinstance(other.value, NotOverGloo)
