"""Collectives are noted whoever starts them, and what gloo cannot send from a GPU is refused."""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from harness.pretend.over_gloo import NotOverGloo
from harness.watch.witness import ADDRESS, GIVEN, Witness
from properties.helpers.groups import group_of_one


class OnGpu(Tensor):
    """Says so, and is not."""

    is_cuda = True


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    with group_of_one():
        yield


@pytest.fixture
def witness() -> Witness:
    # That of the test before may hang on the frames of what it caught.
    gc.collect()
    return Witness()


def test_it_notes_for_as_long_as_somebody_keeps_it() -> None:
    witness = Witness()
    passed = witness.passed
    dist.barrier()
    del witness
    dist.barrier()
    assert [each.kind for each in passed] == ["barrier"]


def everything(x: Tensor) -> None:
    """Whatever gloo can do, one after the other."""
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


def test_everything_in_which_ranks_meet_is_known_with_what_it_is_given() -> None:
    schemas = {
        name.removeprefix("c10d::"): getattr(torch.ops.c10d, name.removeprefix("c10d::"))
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("c10d::") and "." not in name
    }
    found, addressed = {}, {}
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
        # Where it is looked for.
        assert arguments.index("process_group") == (2 if found[name] == 1 else 1)
        for argument in {"dst", "input_split_sizes"} & {*arguments}:
            addressed[name] = arguments.index(argument)
    assert (found, addressed) == (GIVEN, ADDRESS)


def test_what_is_started_in_python_is_noted_in_its_order(witness: Witness) -> None:
    everything(torch.ones(2))
    assert [each.kind for each in witness.passed] == [*ALL, "reduce_scatter"]
    of_vectors = [((2,), torch.float32)]
    assert [each.given for each in witness.passed if each.kind != "barrier"] == [of_vectors] * 7
    (group,) = {each.group for each in witness.passed}
    assert dist.get_process_group_ranks(group) == [0]


def test_the_same_several_times_in_a_row_is_one_line_and_messages_are_none(
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
    assert [each.to for each in witness.passed[3:]] == [None, [2], 0]


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
    # One rank has no gradients to add up.
    [(in_functions, "all_reduce"), (in_ddp, "broadcast"), (in_inference, "all_reduce")],
)
def test_it_does_not_matter_who_starts_a_collective(
    start: Callable[[Tensor], None], kind: str, witness: Witness
) -> None:
    start(torch.ones(2))
    assert kind in [each.kind for each in witness.passed]


SENDS: dict[str, Callable[[Tensor], object]] = {
    "isend": lambda x: dist.isend(x, 0),
    "irecv": lambda x: dist.irecv(x, 0),
    "recv": dist.recv,
    "batch_isend_irecv": lambda x: dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 0)]),
    "all_to_all": lambda x: dist.all_to_all([x], [x]),
}


@pytest.mark.usefixtures("witness")
@pytest.mark.parametrize("name", SENDS)
def test_a_message_from_a_gpu_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(NotOverGloo, match="gloo sends tensors of the host only") as refused:
        SENDS[name](torch.ones(2).as_subclass(OnGpu))
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("witness")
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
