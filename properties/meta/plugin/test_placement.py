"""What is to run on a device runs there: every pool of the tests that a GPU runner picks."""

import ast
import os
from collections.abc import Iterator

import pytest

from harness.plugin.placement import place
from harness.ranks import device
from properties.helpers.places import ROOT

PROPERTIES = ROOT / "properties"
TIER = ("test_equivalence.py", "test_kernels.py", "metamorphic", "step")
POOL = "RankPool"


def sources() -> Iterator[tuple[str, str]]:
    for path in (PROPERTIES / name for name in TIER):
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.name, file.read_text()


def unplaced(source: str) -> list[str]:
    """Pools that are not told where to run, and then run on the CPU."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [
        ast.unparse(call)
        for call in calls
        if ast.unparse(call.func).rpartition(".")[2] == POOL and len(call.args) < 2
    ]


def test_every_pool_is_told_where_to_run() -> None:
    files = dict(sources())
    assert sum(f"{POOL}(" in source for source in files.values()) >= 2
    assert {name: found for name, source in files.items() if (found := unplaced(source))} == {}


@pytest.mark.parametrize("planted", ["RankPool(8)", "pool.RankPool(8, deadline=60)"])
def test_a_pool_that_is_not_told_is_seen(planted: str) -> None:
    source = (PROPERTIES / "metamorphic" / "test_more_ranks.py").read_text()
    assert unplaced(f"{source}\n{planted}") == [planted]


def test_a_larger_pool_is_placed_by_the_same_options_and_where_its_worker_is(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(device, "choose", lambda *words, **which: asked.append((words, which)))
    monkeypatch.setattr(pytestconfig.option, "harness_device", "cuda")
    monkeypatch.setattr(pytestconfig.option, "harness_transport", "gloo")
    place(pytestconfig, 8)
    # As xdist itself tells its workers, if this is one.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    assert asked.pop() == (("cuda", "gloo", 8), {"worker": worker, "workers": workers})
    its = {"workerid": "gw3", "workercount": 5}
    monkeypatch.setattr(pytestconfig, "workerinput", its, raising=False)
    place(pytestconfig, 8)
    assert asked == [(("cuda", "gloo", 8), {"worker": 3, "workers": 5})]
