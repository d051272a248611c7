"""Every hand-written backward is the adjoint of its forward, over the whole group."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
import torch

from harness.candidates.own import native
from harness.case import parse
from harness.ranks.pool import RankPool
from harness.trace import Trace
from properties.helpers.asking import planted_probe, planted_step, run_all
from properties.planted.probes import qualified_name

MESHES = ("sp=1", "sp=2", "sp=3", "sp=4", "sp=2 dp=2")
SEEDS = range(3)


def inner_products(pool: RankPool, candidate: str, mesh: str) -> list[tuple[float, float]]:
    """Return (<A x, y>, <x, A^T y>) for each operator A of a probe, for several x and y."""
    cases = [parse(f"case/1 rows=1:1,1:1 heads=12/12 {mesh} seed={seed}") for seed in SEEDS]
    found = []
    for assembly in run_all(pool, [(case, candidate) for case in cases], traced=True):
        assert not assembly.misfits
        found += list(_pairs(assembly.trace))
    return found


def _pairs(trace: Trace) -> Iterator[tuple[float, float]]:
    for key in trace:
        way, _, operator = key.partition(".")
        if way == "forward":
            yield float(trace[key].values), float(trace[f"backward.{operator}"].values)


def hand_written_functions(package: str = native.__name__) -> set[str]:
    """Find every custom autograd function of a package, whether anything applies it or not."""
    for module in pkgutil.walk_packages(native.__path__, f"{native.__name__}."):
        importlib.import_module(module.name)
    classes, found = [torch.autograd.Function], set()
    while classes:
        function = classes.pop()
        classes += function.__subclasses__()
        if function.__module__.startswith(package):
            found.add(qualified_name(function))
    return found


def tried_functions(pool: RankPool) -> set[str]:
    """Return the functions that gradients passed through in the probe."""
    (assembly,) = run_all(
        pool, [(parse("case/1 rows=1:1 heads=12/12 sp=2"), planted_probe("ADJOINT"))], traced=True
    )
    return {key.partition(".")[2] for key in assembly.trace if key.startswith("through.")}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("mesh", MESHES)
def test_forward_and_backward_are_adjoint(harness_pool: RankPool, mesh: str) -> None:
    pairs = inner_products(harness_pool, planted_probe("ADJOINT"), mesh)
    assert any(forward for forward, _ in pairs)
    for forward, backward in pairs:
        assert forward == backward


def test_the_probe_tries_every_hand_written_function(harness_pool: RankPool) -> None:
    class Fresh(torch.autograd.Function):
        """Defined here, since a class that a test adds to the product would stay there."""

    reached = tried_functions(harness_pool)
    assert hand_written_functions() == reached
    assert len(hand_written_functions()) >= 2
    assert hand_written_functions(__name__) - reached == {qualified_name(Fresh)}


@pytest.mark.parametrize("name", ["ONE_WAY", "PLAIN_GATHER"])
@pytest.mark.parametrize("mesh", ["sp=2", "sp=3"])
def test_a_backward_that_is_not_the_adjoint_is_found(
    harness_pool: RankPool, name: str, mesh: str
) -> None:
    pairs = inner_products(harness_pool, planted_step(name), mesh)
    assert all(forward != backward for forward, backward in pairs)
