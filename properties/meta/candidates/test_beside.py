"""A candidate's ranks import the modules beside its file, and no modules of another folder."""

import importlib
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from harness.candidates import locate
from harness.candidates.beside import FromElsewhere, require_own
from harness.candidates.registry import UnknownCandidate
from harness.case import parse
from harness.cli import main
from harness.commands.options import DIVERGED
from harness.plugin import Prove
from harness.plugin.failures import NotProven
from harness.ranks import pool as pools
from harness.ranks.case_run import CaseRun
from harness.ranks.dispatcher import Dispatcher
from harness.ranks.pool import CannotStart, NeedsOtherRanks, RankPool
from harness.trace import Assembly
from harness.verdict import Verdict
from properties.helpers.alive import address_of, left_behind
from properties.helpers.judging import evaluate, evaluate_all
from properties.helpers.places import PLANTED
from properties.helpers.stores import stored_in

if TYPE_CHECKING:
    from harness.worlds.other_hosts import OtherHosts

pytestmark = pytest.mark.wrong_on_purpose

CASE = parse("case/1 rows=3:111,4:1011 sp=2")
ALONE = parse("case/1 rows=3:111,4:1011 sp=1")
OF_THREE = parse("case/1 rows=3:111,4:1011 heads=3 sp=3")
RIGHT, WRONG = 1, 2

MINE = """
import torch
from harness.candidates.own.native import LocalDialect
from parts import scale
from step import TIMES

torch.library.custom_op("mine::scaled", scale.scaled, mutates_args=())


class Plain(LocalDialect):
    name = "plain"

    def times(self):
        return TIMES

    def run(self, case, rank, emit):
        def scaled(key, tensor, tokens=None):
            emit(key, tensor * self.times() if key.startswith("grad.") else tensor, tokens)

        super().run(case, rank, scaled)


class Late(Plain):
    def times(self):
        from parts.late import times

        return times()


class Registered(Plain):
    def times(self):
        return torch.ops.mine.scaled(torch.ones(())).item()


STEP, LATE, REGISTERED = Plain(), Late(), Registered()
"""
SCALE = """
import torch
from . import late

def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * late.times()
"""


def write_candidate(folder: Path, times: int) -> str:
    """Write a candidate whose gradients are multiplied by what the modules beside it contain."""
    (folder / "parts").mkdir(parents=True)
    (folder / "mine.py").write_text(MINE)
    (folder / "step.py").write_text(f"TIMES = {times}\n")
    (folder / "parts" / "__init__.py").touch()
    (folder / "parts" / "scale.py").write_text(SCALE)
    (folder / "parts" / "late.py").write_text(f"def times(): return {times}\n")
    return f"{folder}/mine.py"


@pytest.fixture(scope="module")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The files of a right and of a wrong candidate, with the same names in two folders."""
    folder = tmp_path_factory.mktemp("two")
    return write_candidate(folder / "a", RIGHT), write_candidate(folder / "b", WRONG)


@pytest.fixture
def files_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The file of a right candidate in the current folder, and of a wrong one in another."""
    wrong = write_candidate(tmp_path / "c", WRONG)
    right = write_candidate(tmp_path / "current", RIGHT)
    monkeypatch.chdir(tmp_path / "current")
    return right, wrong


Judge = Callable[..., set[str]]


@pytest.fixture(params=["check", "golden verify", "pytest"])
def failing_candidates(
    request: pytest.FixtureRequest,
    harness_pool: RankPool,
    harness_prove: Prove,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Judge:
    """A function that judges candidates together in one of three ways; returns those that fail."""
    monkeypatch.setattr("harness.campaign.examine.can_shrink", lambda _: False)
    for command in ("examiner", "golden.look"):
        monkeypatch.setattr(
            f"harness.commands.{command}.open_pool", lambda *_: nullcontext(harness_pool)
        )

    def document_of(*words: str, names: tuple[str, ...]) -> Any:
        candidates = [word for name in names for word in ("--candidate", name)]
        capsys.readouterr()
        assert main([*words, "--sp", "2", "--json", *candidates]) == DIVERGED
        return json.loads(capsys.readouterr().out)

    def by_check(*names: str) -> set[str]:
        document = document_of(
            "check", "--cases", "3", "--dp", "1", "--dtype", "fp64", names=names
        )
        return {name for name, tally in document["candidates"].items() if tally["failures"]}

    def by_golden(*names: str) -> set[str]:
        stored_in(tmp_path / "golden")
        document = document_of(
            "golden", "verify", "--store", str(tmp_path / "golden"), names=names
        )
        # The document has only the first failure of each golden.
        assert document["verdicts"]["DIVERGED"] * len(names) == sum(document["verdicts"].values())
        return {failure["candidate"] for failure in document["failures"].values()}

    def in_pytest(*names: str) -> set[str]:
        failed = set()
        for name in names:
            try:
                harness_prove(CASE, name)
            except NotProven as error:
                if str(error).startswith("DIVERGED"):
                    failed.add(name)
        return failed

    return {"check": by_check, "golden verify": by_golden, "pytest": in_pytest}[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["right", "wrong"])
def test_two_candidates_with_modules_of_the_same_names_use_their_own(
    first: str,
    two_files: tuple[str, str],
    failing_candidates: Judge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    right, wrong = (f"{file}:STEP" for file in two_files)
    both = (right, wrong) if first == "right" else (wrong, right)
    assert failing_candidates(*both) == {wrong}


@pytest.mark.slow
def test_a_module_beside_the_candidate_takes_precedence_over_the_current_folder(
    files_by_folder: tuple[str, str], failing_candidates: Judge
) -> None:
    _, wrong = files_by_folder
    assert failing_candidates(f"{wrong}:STEP") == {f"{wrong}:STEP"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["STEP", "LATE", "REGISTERED"])
def test_late_imports_and_registered_operators_are_the_candidates_own(
    name: str, two_files: tuple[str, str], harness_pool: RankPool
) -> None:
    right, wrong = (f"{file}:{name}" for file in two_files)
    jobs = [(CASE, candidate) for candidate in (right, wrong, right, wrong, "native-local")]
    verdicts = [comparison.verdict for comparison in evaluate_all(jobs, harness_pool)]
    assert [verdict.passed for verdict in verdicts] == [True, False, True, False, True]
    assert set(verdicts) <= {Verdict.EQUAL, Verdict.WITHIN, Verdict.DIVERGED}


@pytest.mark.slow
def test_candidates_of_one_folder_and_those_that_come_with_the_harness_share_ranks(
    two_files: tuple[str, str],
) -> None:
    right, wrong = two_files
    with RankPool(1) as pool:
        for candidate in ("native-local", f"{right}:STEP", f"{right}:LATE", "mutants.B14"):
            assert isinstance(pool.run(ALONE, locate(candidate)), Assembly)
        assert pool.launches == 1
        assert isinstance(pool.run(ALONE, locate(f"{wrong}:STEP")), Assembly)
        assert pool.launches == 2
        assert len(pool.pids()) == 4
    assert pool.pids() == []


@pytest.mark.slow
def test_idle_ranks_of_a_folder_make_room_for_those_of_another(
    two_files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MOST_SETS", 1)
    right, wrong = (f"{file}:STEP" for file in two_files)
    with RankPool(1) as pool:
        verdicts = [
            next(evaluate_all([(ALONE, candidate)], pool)).verdict
            for candidate in (right, wrong, right)
        ]
        assert len(pool.pids()) == 2
    assert [verdict.passed for verdict in verdicts] == [True, False, True]


def test_on_several_hosts_a_second_folder_is_refused_while_the_first_is_under_way() -> None:
    pool = RankPool(1, nodes=cast("OtherHosts", object()))
    station = pool._serving("/a", 1, "")
    station.waiting.append(CaseRun(ALONE, "/a/mine.py:STEP", "/a", traced=False))
    with pytest.raises(
        NeedsOtherRanks, match=r"candidate in /b: needs ranks of its own.* all serve /a"
    ):
        pool._serving("/b", 1, "")
    station.waiting.clear()
    assert pool._serving("/b", 1, "") is station


@pytest.mark.slow
def test_a_step_that_takes_all_ranks_has_a_set_of_its_own_for_each_size() -> None:
    over_all = f"{PLANTED / 'alone.py'}:OVER_ALL"
    with RankPool(2) as pool:
        for case in (CASE, ALONE, CASE):
            assert evaluate(case, over_all, pool).verdict.passed
            assert len(pool.logs()) == case.ranks
        # A supervisor and two ranks, a supervisor and one.
        assert len(pool.pids()) == 5
    assert pool.pids() == []


def test_on_several_hosts_what_fits_one_host_runs_there_and_larger_sizes_are_refused() -> None:
    hosts = cast("OtherHosts", SimpleNamespace(count=2))
    pool, over_all = RankPool(4, nodes=hosts), locate(f"{PLANTED / 'alone.py'}:OVER_ALL")
    pool._known[over_all.full, False] = "ranks=all", []
    sizes = {case.ranks: pool._size_for(case, over_all) for case in (ALONE, CASE, OF_THREE)}
    assert sizes == {1: 1, 2: 2, 3: 4}
    alone = pool._serving(over_all.folder, 1, "")
    alone.waiting.append(CaseRun(ALONE, over_all.full, over_all.folder, traced=False))
    assert pool._serving("/b", 4, "") is not alone


@pytest.mark.slow
def test_a_candidate_that_does_not_load_leaves_other_ranks_ready(
    two_files: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "empty.py").touch()
    with RankPool(1) as pool:
        pool.load(locate(f"{tmp_path}/empty.py:STEP"))
        pool.load(locate(f"{two_files[0]}:STEP"))
        with pytest.raises(UnknownCandidate, match=r"empty.py has no attribute 'STEP'"):
            pool.run(ALONE, locate(f"{two_files[0]}:STEP"))
        assert isinstance(pool.run(ALONE, locate(f"{two_files[0]}:STEP")), Assembly)


@pytest.mark.slow
def test_ctrl_c_ends_the_ranks_of_every_folder(
    two_files: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: Dispatcher) -> None:
        raise KeyboardInterrupt

    with RankPool(1) as pool:
        for file in two_files:
            pool.run(ALONE, locate(f"{file}:STEP"))
        # Each folder has a supervisor and one rank, which share an address.
        addresses = {address_of(pid) for pid in pool.pids()}
        assert len(addresses) == 2
        for file in two_files:
            pool.submit(ALONE, locate(f"{file}:STEP"))
        with monkeypatch.context() as patch:
            patch.setattr(Dispatcher, "incidents", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.collect()
        assert [left_behind(address) for address in addresses] == [[], []]
        assert isinstance(pool.run(ALONE, locate("native-local")), Assembly)


@pytest.mark.slow
def test_a_module_imported_from_elsewhere_is_a_fault_that_names_both_files(
    tmp_path: Path,
) -> None:
    file = write_candidate(tmp_path, RIGHT)
    (tmp_path / "numpy.py").write_text("raise AssertionError")
    with RankPool(1) as pool:
        pool.load(locate(f"{file}:STEP"))
        with pytest.raises(CannotStart) as raised:
            pool.run(ALONE, locate(f"{file}:STEP"))
    message = (
        f"{tmp_path}/numpy.py lies beside the candidate, and `import numpy` gives {np.__file__}"
    )
    assert message in str(raised.value)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder with modules that nothing imports, and with a folder that is no package."""
    (tmp_path / "__main__.py").touch()
    (tmp_path / "never_imported.py").touch()
    # As after a clone of torch.
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "setup.py").touch()
    return str(tmp_path)


def test_a_module_is_a_fault_only_if_another_file_was_imported(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.py"
    own.touch()
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "link"))
    monkeypatch.setitem(sys.modules, "own", importlib.import_module("own"))
    require_own(folder)
    monkeypatch.setitem(sys.modules, "own", ModuleType("own"))
    with pytest.raises(FromElsewhere, match=f"{own} lies beside .* gives what is built into"):
        require_own(folder)


@pytest.mark.slow
def test_a_package_in_the_current_folder_is_imported_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_candidate(tmp_path / "package", RIGHT)
    monkeypatch.chdir(tmp_path)
    folders = {
        "package.mine:STEP": str(tmp_path),
        "package/mine.py:STEP": str(tmp_path / "package"),
        # These are installed, or part of the harness.
        "torch.nn:Linear": "",
        "harness.case:Case": "",
        "native-local": "",
        "mutants.B14": "",
    }
    assert {name: locate(name).folder for name in folders} == folders
    for name in ("step.py", "parts"):
        (tmp_path / "package" / name).rename(tmp_path / name)
    with RankPool(1) as pool:
        assert isinstance(pool.run(ALONE, locate("package.mine:STEP")), Assembly)
