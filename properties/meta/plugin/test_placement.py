"""The pools of tests that run on GPU runners are placed on the device of the command line."""

import ast
import os
from collections.abc import Iterator

import pytest

from harness.plugin.placement import place
from harness.ranks import device
from properties.helpers.places import ROOT

PROPERTIES = ROOT / "properties"
# The tests that the GPU tier runs.
TIER = ("test_equivalence.py", "test_kernels.py", "metamorphic", "step")
POOL = "RankPool"


def sources() -> Iterator[tuple[str, str]]:
    for path in (PROPERTIES / name for name in TIER):
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.name, file.read_text()


def unplaced(source: str) -> list[str]:
    """Return the calls that create a pool without a placement, which would run on the CPU."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [
        ast.unparse(call)
        for call in calls
        if ast.unparse(call.func).rpartition(".")[2] == POOL and len(call.args) < 2
    ]


def test_every_pool_is_created_with_a_placement() -> None:
    files = dict(sources())
    assert sum(f"{POOL}(" in source for source in files.values()) >= 2
    assert {name: found for name, source in files.items() if (found := unplaced(source))} == {}


@pytest.mark.parametrize("planted", ["RankPool(8)", "pool.RankPool(8, deadline=60)"])
def test_a_pool_without_a_placement_is_found(planted: str) -> None:
    source = (PROPERTIES / "metamorphic" / "test_more_ranks.py").read_text()
    assert unplaced(f"{source}\n{planted}") == [planted]


def test_a_pool_is_placed_by_the_options_of_the_session_and_by_its_worker(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(
        device, "choose_placement", lambda *args, **kwargs: calls.append((args, kwargs))
    )
    monkeypatch.setattr(pytestconfig.option, "harness_device", "cuda")
    monkeypatch.setattr(pytestconfig.option, "harness_transport", "gloo")
    place(pytestconfig, 8)
    # This test itself may run in a worker of pytest-xdist.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    assert calls.pop() == (("cuda", "gloo", 8), {"worker": worker, "workers": workers})
    other = {"workerid": "gw3", "workercount": 5}
    monkeypatch.setattr(pytestconfig, "workerinput", other, raising=False)
    place(pytestconfig, 8)
    assert calls == [(("cuda", "gloo", 8), {"worker": 3, "workers": 5})]
