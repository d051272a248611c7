"""Every backward that we wrote by hand is the adjoint of its forward, over the whole group."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
import torch

from harness.candidates.own import native
from harness.case import parse
from harness.ranks.pool import RankPool
from harness.trace import Trace
from properties.helpers.asking import ask, mutant, probe
from properties.planted.probes import qualified_name

MESHES = ("sp=1", "sp=2", "sp=3", "sp=4", "sp=2 dp=2")
SEEDS = range(3)


def products(pool: RankPool, candidate: str, mesh: str) -> list[tuple[float, float]]:
    """(<A x, y>, <x, A^T y>) of each operator that a probe applies, for several x and y."""
    cases = [parse(f"case/1 rows=1:1,1:1 heads=12/12 {mesh} seed={seed}") for seed in SEEDS]
    found = []
    for assembly in ask(pool, [(case, candidate) for case in cases], traced=True):
        assert not assembly.misfits
        found += list(_pairs(assembly.trace))
    return found


def _pairs(trace: Trace) -> Iterator[tuple[float, float]]:
    for key in trace:
        way, _, operator = key.partition(".")
        if way == "forward":
            yield float(trace[key].values), float(trace[f"backward.{operator}"].values)


def hand_written(package: str = native.__name__) -> set[str]:
    """Every custom autograd function of a package, whether anything applies it or not."""
    for module in pkgutil.walk_packages(native.__path__, f"{native.__name__}."):
        importlib.import_module(module.name)
    known, found = [torch.autograd.Function], set()
    while known:
        function = known.pop()
        known += function.__subclasses__()
        if function.__module__.startswith(package):
            found.add(qualified_name(function))
    return found


def tried(pool: RankPool) -> set[str]:
    """The functions that gradients really passed through in the probe."""
    (assembly,) = ask(
        pool, [(parse("case/1 rows=1:1 heads=12/12 sp=2"), probe("ADJOINT"))], traced=True
    )
    return {key.partition(".")[2] for key in assembly.trace if key.startswith("through.")}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("mesh", MESHES)
def test_forward_and_backward_are_adjoint(harness_pool: RankPool, mesh: str) -> None:
    pairs = products(harness_pool, probe("ADJOINT"), mesh)
    assert any(forward for forward, _ in pairs)
    for forward, backward in pairs:
        assert forward == backward


def test_no_function_written_by_hand_is_left_untried(harness_pool: RankPool) -> None:
    class Fresh(torch.autograd.Function):
        """In a package of its own: a class that a test plants in the product stays there."""

    reached = tried(harness_pool)
    assert hand_written() == reached
    assert len(hand_written()) >= 2
    assert hand_written(__name__) - reached == {qualified_name(Fresh)}


@pytest.mark.parametrize("name", ["ONE_WAY", "PLAIN_GATHER"])
@pytest.mark.parametrize("mesh", ["sp=2", "sp=3"])
def test_a_backward_that_is_not_the_adjoint_is_found(
    harness_pool: RankPool, name: str, mesh: str
) -> None:
    pairs = products(harness_pool, mutant(name), mesh)
    assert all(forward != backward for forward, backward in pairs)
