"""The witness notes every collective, and refuses what gloo cannot send from a GPU."""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from harness.pretend.over_gloo import NotOverGloo
from harness.watch.witness import GIVEN, TARGETS, Witness
from properties.helpers.groups import group_of_one


class OnGpu(Tensor):
    """A tensor on the CPU that reports a GPU."""

    is_cuda = True


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    with group_of_one():
        yield


@pytest.fixture
def witness() -> Witness:
    # Exceptions of the previous test may still keep its witness alive.
    gc.collect()
    return Witness()


def test_a_witness_notes_calls_for_as_long_as_it_exists() -> None:
    witness = Witness()
    calls = witness.calls
    dist.barrier()
    del witness
    dist.barrier()
    assert [call.kind for call in calls] == ["barrier"]


def everything(x: Tensor) -> None:
    """Enter every collective that gloo has, one after the other."""
    rows = [torch.zeros(2)]
    dist.all_reduce(x)
    dist.all_gather(rows, x)
    dist.broadcast(x, 0)
    dist.barrier()
    dist.reduce(x, 0)
    dist.gather(x, rows, 0)
    dist.scatter(x, rows, 0)
    dist.reduce_scatter(x, rows)


ALL = ["all_reduce", "all_gather", "broadcast", "barrier", "reduce", "gather", "scatter"]


def test_the_tables_have_every_operation_of_torch_in_which_ranks_meet() -> None:
    schemas = {
        name.removeprefix("c10d::"): getattr(torch.ops.c10d, name.removeprefix("c10d::"))
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("c10d::") and "." not in name
    }
    found, targets = {}, {}
    for name, packet in schemas.items():
        arguments = [argument.name for argument in packet.default._schema.arguments]
        if "process_group" not in arguments:
            continue
        given = [
            place
            for place, argument in enumerate(arguments)
            if argument.startswith(("input", "tensors")) and "split" not in argument
        ]
        found[name] = given[0] if given and not name.startswith("recv") else None
        # The witness expects the group at this position.
        assert arguments.index("process_group") == (2 if found[name] == 1 else 1)
        for argument in {"dst", "input_split_sizes"} & {*arguments}:
            targets[name] = arguments.index(argument)
    assert GIVEN.keys() - found.keys() <= {"gather_into_tensor_"}, (
        "which a torch before 2.15 lacks"
    )
    known = {name: place for name, place in GIVEN.items() if name in found}
    assert (found, targets) == (known, TARGETS)


def test_collectives_of_python_are_noted_in_order_with_what_they_were_given(
    witness: Witness,
) -> None:
    everything(torch.ones(2))
    assert [call.kind for call in witness.calls] == [*ALL, "reduce_scatter"]
    of_vectors = [((2,), torch.float32)]
    assert [call.given for call in witness.calls if call.kind != "barrier"] == [of_vectors] * 7
    (group,) = {call.group for call in witness.calls}
    assert dist.get_process_group_ranks(group) == [0]


def test_an_order_joins_equal_collectives_in_a_row_and_omits_messages(
    witness: Witness,
) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    dist.barrier()
    dist.all_to_all_single(torch.zeros(2, 3), torch.ones(2, 3), [2], [2])
    assert dist.group.WORLD is not None
    with pytest.raises(RuntimeError, match="not connected"):
        dist.group.WORLD.send([torch.ones(2)], 0, 0)
    short, long = witness.order(shapes=False), witness.order(shapes=True)
    assert [row[1:] for row in short] == [
        ("all_reduce", "", "", 3),
        ("barrier", "", "", 1),
        ("all_to_all_base", "", "", 1),
    ]
    assert [row[2:] for row in long] == [
        ("[2]", "float32", 3),
        ("", "", 1),
        ("[2, 3]", "float32", 1),
    ]
    assert [call.target for call in witness.calls[3:]] == [None, [2], 0]


def in_functions(x: Tensor) -> None:
    assert dist.group.WORLD is not None
    functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))


def in_ddp(x: Tensor) -> None:
    DistributedDataParallel(nn.Linear(2, 2))(x).sum().backward()


def in_inference(x: Tensor) -> None:
    with torch.inference_mode():
        dist.all_reduce(x + 1)


@pytest.mark.parametrize(
    ("start", "kind"),
    # With one rank, DDP has no gradients to reduce.
    [(in_functions, "all_reduce"), (in_ddp, "broadcast"), (in_inference, "all_reduce")],
)
def test_collectives_are_noted_whatever_code_starts_them(
    start: Callable[[Tensor], None], kind: str, witness: Witness
) -> None:
    start(torch.ones(2))
    assert kind in [call.kind for call in witness.calls]


SENDS: dict[str, Callable[[Tensor], object]] = {
    "isend": lambda x: dist.isend(x, 0),
    "irecv": lambda x: dist.irecv(x, 0),
    "recv": dist.recv,
    "batch_isend_irecv": lambda x: dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 0)]),
    "all_to_all": lambda x: dist.all_to_all([x], [x]),
}


@pytest.mark.usefixtures("witness")
@pytest.mark.parametrize("name", SENDS)
def test_a_message_from_a_gpu_over_gloo_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(NotOverGloo, match="gloo sends tensors of the host only") as refused:
        SENDS[name](torch.ones(2).as_subclass(OnGpu))
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("witness")
def test_everything_that_gloo_can_send_is_sent() -> None:
    received = torch.zeros(2)
    dist.all_to_all_single(received, torch.ones(2))
    assert received.tolist() == [1, 1]
    on_gpu = torch.ones(2).as_subclass(OnGpu)
    dist.all_reduce(on_gpu)
    # This one is refused by gloo itself, for its shape: a tensor of the host may be sent.
    with pytest.raises(RuntimeError) as other:
        dist.all_to_all([received], [torch.ones(3)])
    assert not isinstance(other.value, NotOverGloo)
