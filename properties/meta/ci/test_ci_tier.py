"""The programs of the GPU tier that examine a machine report results and errors alike."""

from itertools import islice

import pytest
from tier import attention, collectives, machine


def test_each_fact_of_a_machine_is_a_value_or_an_error() -> None:
    seconds = machine.seconds("pass")
    assert isinstance(seconds, float)
    assert 0 < seconds < machine.PATIENCE
    assert machine.seconds("raise OSError('no such name')") == "OSError: no such name"
    assert machine.pidfd() == "works"
    assert machine.memory()["MemTotal"] > 0
    assert machine.free("/nowhere") == "[Errno 2] No such file or directory: '/nowhere'"


def test_attention_is_tried_one_kernel_after_the_other() -> None:
    own, plain, *others = islice(attention.combinations("cpu"), 1 + len(attention.BACKENDS))
    assert (own["kernel"], own["took"], own["error"]) == ("by itself", "FLASH_ATTENTION", "")
    assert own["off"] < 1e-12
    assert (plain["kernel"], plain["off"]) == ("MATH", 0.0)
    (cudnn,) = (each for each in others if each["kernel"] == "CUDNN_ATTENTION")
    assert cudnn["error"].startswith("RuntimeError: No viable backend")


@pytest.mark.slow
def test_a_collective_that_ends_its_ranks_is_reported_with_those_before_it() -> None:
    trials = [("all_reduce", "bfloat16"), ("nothing", "bool"), ("send", "")]
    summed, ended = collectives.run_pair("cpu", trials)
    assert summed == ("all_reduce", "bfloat16", "")
    assert ended[:2] == ("nothing", "bool")
    assert ended[2].endswith("KeyError: 'nothing'")
