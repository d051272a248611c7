"""A script shows what the harness found, to somebody who has only torch."""

import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.candidates import UnknownCandidate
from harness.candidates.own.benign import BANK as BENIGN
from harness.candidates.own.mutants import BANK as MUTANTS
from harness.case import Case, parse
from harness.failure.script import CannotStandAlone, standalone
from harness.judge import verdict_only
from harness.ranks.pool import RankPool
from harness.trace import Kind
from properties.sources import imported, undefined

SMALL = "case/1 rows=2:11,3:111 heads=2/2 vocab=16 sp=2 dim=4"
SHARDED = f"{SMALL} wrapper=fsdp"
SEVERAL = (
    "case/1 rows=3:111,4:1111:left,5:11011,2:01 heads=4/2 layers=2 vocab=16 sp=2 dim=4 micro=2"
)
DRIFTING = Path(__file__).parent / "step" / "drifting.py"

# Of each stage a mutant, and a case in which it shows.
STAGES = {
    "mutants.B11b": SMALL,
    "mutants.B14": SMALL,
    "mutants.B29": SMALL,
    "mutants.B43": SMALL,
    "mutants.B60": SMALL,
    "mutants.B76": SEVERAL,
    "mutants.B116": SMALL,
    "mutants.B123": SMALL,
    "mutants.B132": SMALL,
    "mutants.B151": f"{SEVERAL.replace('rows=', 'rows=2:11,')}",
}

# The count of targets is kept for the next case, and almost everything is called like something
# that a script has of its own.
CROWDED = """\
import torch.distributed
import harness.reference as ref
from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect as Base
from harness.candidates.own.native.packing import Batch, Shard, Stream, shard as cut_stream
from harness.case import Case
from harness.reference.decoder import Decoder as Net

CASES, losses = {}, {}


def main(value: int) -> int:
    return value


def rowwise() -> int:
    return main(0)


def F(sp: int) -> int:
    return sp + rowwise()


CASES["sp"] = F


class Row(Base):
    name = "row"
    numbers = None

    def model(self, case: "Case", rank: Rank) -> Net:
        assert torch.distributed.get_world_size() >= CASES["sp"](case.sp)
        return Net(case, ref.TORCH_DTYPES[case.dtype], rank.device)

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        from harness.candidates.own.native.packing import unpad, pad_to as padded

        assert unpad is not padded
        return cut_stream(stream, case.pad_id, case.sp, rank.sp_index)

    def loss(self, case: Case, batch: "Batch", *rest: "torch.Tensor") -> "torch.Tensor":
        stream, nll_L, targets, rank = rest
        numbers, self.numbers = self.numbers, targets
        return super().loss(case, batch, stream, nll_L, numbers or targets, rank)


MINE = Row()

if __name__ == "__main__":
    raise SystemExit("not to be run")
"""


@dataclass(frozen=True, slots=True)
class Script:
    """What is to be run, and what ran before it on the same ranks."""

    candidate: str
    line: str
    before: tuple[str, ...] = ()
    hangs: bool = False

    @property
    def case(self) -> Case:
        return parse(self.line)

    @property
    def text(self) -> str:
        source = standalone(self.case, self.candidate, tuple(map(parse, self.before)))
        assert source.count("timedelta(seconds=60)") == 1
        # What hangs is not waited for; what does not may take its time on a busy machine.
        return source.replace("(seconds=60)", "(seconds=4)") if self.hangs else source


CLEAN = {
    "native-gather": f"{SEVERAL} loss=micro-mean steps=2 checkpoint=1 nudge=0.5 wrapper=fsdp",
    "native-local": f"{SEVERAL} loss=row-mean window=2 kernel=sdpa tied=1 dtype=bf16",
}
OTHER_RANKS = "case/1 rows=4:1111 heads=4/2 vocab=16 sp=1 dim=4"
OTHER_COUNT = "case/1 rows=6:111111 heads=4/2 vocab=16 sp=2 dim=4"
SCRIPTS = {
    **{name: Script(name, line) for name, line in (STAGES | CLEAN).items()},
    "hangs": Script(
        "mutants.B146", "case/1 rows=5:00000,3:111 heads=4/2 vocab=16 sp=2 dim=4", hangs=True
    ),
    "crowded": Script("crowded.py:MINE", SMALL, before=(OTHER_RANKS, OTHER_COUNT)),
}

Run = Callable[[str], subprocess.CompletedProcess[str]]


def torchrun(folder: Path, text: str, ranks: int) -> subprocess.CompletedProcess[str]:
    """In an empty folder, where the harness cannot be imported."""
    folder.mkdir()
    (folder / "script.py").write_text(text)
    blocked = folder.parent / "blocked"
    blocked.mkdir(exist_ok=True)
    (blocked / "sitecustomize.py").write_text("import sys; sys.modules['harness'] = None")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, "--nproc-per-node", str(ranks), "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(blocked), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """What came of a script. The one behind it is begun at the same time."""
    base, names = tmp_path_factory.mktemp("scripts"), list(SCRIPTS)
    (base / "crowded.py").write_text(CROWDED)
    begun: dict[str, Future[subprocess.CompletedProcess[str]]] = {}
    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)

        def outcome(name: str) -> subprocess.CompletedProcess[str]:
            for each in names[names.index(name) :][:2]:
                if each not in begun:
                    # Not in the thread: Python 3.11 may parse in one at a time only.
                    text, ranks = SCRIPTS[each].text, SCRIPTS[each].case.ranks
                    begun[each] = pool.submit(torchrun, base / each, text, ranks)
            return begun[name].result()

        yield outcome


def differences(printed: str) -> list[tuple[str, float, float]]:
    """Where each tensor differs first, what was expected, and what came."""
    found = re.findall(r"^(?:first|then) +(.+): expected (\S+), got (\S+);", printed, re.MULTILINE)
    return [(place, float(expected), float(got)) for place, expected, got in found]


def test_every_stage_has_a_script_here() -> None:
    shown = {MUTANTS[name.partition(".")[2]].stage for name in STAGES}
    assert shown == {mutant.stage for mutant in MUTANTS.values()}


@pytest.mark.parametrize("name", STAGES)
def test_a_script_prints_what_the_harness_found(
    name: str, run: Run, harness_pool: RankPool
) -> None:
    comparison = verdict_only(SCRIPTS[name].case, name, harness_pool)
    first, fault = comparison.first, comparison.fault
    outcome = run(name)
    assert outcome.returncode == 1, outcome.stderr
    if fault:
        assert fault.kind is Kind.RAISED
        _, raised = fault.summary.split(" raised ")
        assert re.search(rf"^FAULT on rank \d: {re.escape(raised)}", outcome.stdout, re.MULTILINE)
        return
    assert first is not None
    place, expected, got = differences(outcome.stdout)[0]
    assert place.split(" at ")[0] == first.key
    if first.key == "nll":
        row, position = first.row, first.position
        assert place == f"nll at row {row} position {position}, held by rank {first.owner}"
    assert (expected, got) == pytest.approx((first.expected, first.got), rel=1e-9)
    for finding in comparison.findings:
        said = rf"^(first|then) +{finding.key}: (?!expected)"
        assert re.search(said, outcome.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", CLEAN)
def test_a_script_of_a_step_that_is_right_says_so(name: str, run: Run) -> None:
    outcome = run(name)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert re.search(r"^equal +in every loss", outcome.stdout, re.MULTILINE)


def test_a_script_brings_along_wrappers_only_where_there_is_one() -> None:
    small, sharded = parse(SMALL), parse(SHARDED)
    assert "fully_shard" not in standalone(small, "mutants.B14")
    assert "fully_shard" in standalone(sharded, "mutants.B14")
    assert "fully_shard" in standalone(small, "mutants.B14", before=(sharded,))


def test_a_hang_ends_a_script_with_a_word(run: Run) -> None:
    outcome = run("hangs")
    assert outcome.returncode == 1
    assert re.search(r"FAULT on rank \d: .*Timed out", outcome.stdout)


def test_a_file_with_state_and_names_in_the_way_stands_alone(run: Run) -> None:
    outcome = run("crowded")
    assert outcome.returncode == 1, outcome.stderr
    # Three targets, and what ran before had five.
    (place, expected, got), *_ = differences(outcome.stdout)
    assert place == "loss"
    assert got == pytest.approx(expected * 3 / 5)


def test_without_the_harness_nothing_imports_it(run: Run, tmp_path: Path) -> None:
    run("mutants.B14")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['harness'] = None")
    blocked = subprocess.run(
        [sys.executable, "-c", "import harness"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "import of harness halted" in blocked.stderr


def definitions(source: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module that it is, up to where it would run."""
    module = types.ModuleType("script")
    monkeypatch.setitem(sys.modules, "script", module)
    exec(compile(source, "script.py", "exec"), module.__dict__)
    return module


def test_all_of_the_bank_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    case = parse(f"{SEVERAL} loss=row-mean")
    names = [f"mutants.{key}" for key in MUTANTS] + [f"benign.{key}" for key in BENIGN]
    for name in names:
        source = standalone(case, name)
        assert not undefined(source), name
        assert imported(source) - sys.stdlib_module_names == {"numpy", "torch"}, name
        module = definitions(source, monkeypatch)
        assert name == module.NAME
        assert len(source.splitlines()) < 1350, name


def test_the_probe_sees_names_that_nobody_defines() -> None:
    source = "import os\ndef f(a):\n    class C:\n        b = a, os\n        c = d\n    return e\n"
    assert undefined(source) == {"d", "e"}


def test_a_script_holds_the_batch_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    case = parse(
        "case/1 rows=3:101:left,60:0{20}1{40},1:1,70:"
        f"{'01' * 35} heads=4/2 layers=1 vocab=1000 sp=2 dp=2 loss=row-mean seed=7"
    )
    source = standalone(case, f"{DRIFTING}:OLD_COUNT")
    (described,) = definitions(source, monkeypatch).CASES
    rows = zip(case.rows, described.pop("rows"), strict=True)
    for number, (row, (ids, mask, side)) in enumerate(rows):
        assert (ids, mask, side) == (case.ids_of(number), row.mask, row.side)
    assert described == {field: getattr(case, field) for field in described}
    # Somebody else's source may ask for any of them.
    assert set(described) == set(Case.__dataclass_fields__) - {"rows", "ids"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("native", "candidate=native: not built in; use native-gather"),
        ("mutants.B9999", "candidate=mutants.B9999: there is no B9999 in mutants; near: B99"),
        ("nowhere/mine.py:MINE", r"there is no file nowhere/mine\.py"),
        (f"{DRIFTING}:NONE", "has no attribute 'NONE'"),
        (f"{DRIFTING}:OldCount", "OldCount is a class; name an instance of it"),
        ("harness.nowhere:MINE", "there is no module harness.nowhere"),
        ("nowhere.at_all:MINE", r"module 'nowhere\.at_all' is not installed"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name: str, message: str) -> None:
    with pytest.raises(UnknownCandidate, match=message):
        standalone(parse(SMALL), name)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("from harness.case import *\nM = parse", "name what is imported"),
        ("from .mine import M", "a relative import leads nowhere from a single file"),
        ("import harness.case as c\nM = print(c)", "harness.case is used as a module"),
        ("from harness.case import nothing as M", "harness.case.nothing: there is no such name"),
        ("M = (", "mine.py:1: '\\(' was never closed"),
        (
            "from harness.case import parse as read\nM = lambda parse: read(parse)",
            "read has to be called parse in a single file, which is a local name there",
        ),
    ],
)
def test_a_source_that_does_not_fit_into_one_file_is_refused(
    source: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(CannotStandAlone, match=message):
        standalone(parse(SMALL), f"{tmp_path / 'mine.py'}:M")


def test_a_library_under_test_is_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import rich\nfrom hypothesis import given\nM = given()\n")
    assert {"rich", "hypothesis"} <= imported(standalone(parse(SMALL), f"{tmp_path}/mine.py:M"))
    assert "hypothesis" in imported(standalone(parse(SMALL), "hypothesis.strategies:text"))


def test_what_is_done_before_a_library_is_imported_stays_before_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import sys\nsys.path.insert(0, 'somewhere')\nimport rich, json\n"
        "import rich.live\nM = rich.live.Live\n"
    )
    source = standalone(parse(SMALL), f"{tmp_path}/mine.py:M")
    assert source.count("import rich") == 2
    before, after = source.split("sys.path.insert(0")
    assert "import rich" not in before
    assert "\nimport rich, json\n" in after
    assert "\nimport rich.live\n" in after
    assert not undefined(source)


def test_writing_a_script_needs_no_torch() -> None:
    code = (
        "import sys; from harness.case import parse; "
        "from harness.failure.script import standalone; "
        f"standalone(parse('{SMALL}'), 'mutants.B14'); print('torch' in sys.modules)"
    )
    written = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert written.stdout == "False\n"
