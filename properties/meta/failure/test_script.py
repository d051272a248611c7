"""A script shows a failure by itself: the step, the case, and the numbers that are wrong."""

import ast
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.compare import Comparison, Verdict, fault_comparison, unsupported_comparison
from harness.failure import script_runtime
from harness.failure.replay import replay
from harness.failure.script import MOST_ELEMENTS, script
from harness.failure.source import NoScript, source_of
from harness.failure.source_slice import slice_source
from harness.judge import Job, Session
from harness.rank_program.placement import Placement
from harness.ranks.pool import RankPool
from harness.report import explain
from harness.trace import Fault, Kind
from harness.wire.messages import Order
from properties.helpers.commands import run_to_end
from properties.helpers.wait import PATIENCE, eventually

SMALL = "case/1 rows=4:1111,3:111 heads=2/2 layers=1 vocab=16 sp=2 dim=4"
OTHER_COUNT = "case/1 rows=7:1111111 heads=4/2 layers=1 vocab=16 sp=2 dim=4"

# A file with every kind of failure. It has a `__future__` import and a `__main__` block, which a
# script must move and leave out.
MINE = '''\
"""Steps of somebody else."""

from __future__ import annotations

import sys
import time

from torch import distributed as dist

from harness.candidates.own.native import LocalDialect


class Mine(LocalDialect):
    name = "mine"

    def __init__(self, way: str) -> None:
        self.way, self.count = way, None

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        if self.way == "crash" and rank.index == 1:
            raise RuntimeError("out of luck")
        while self.way == "hang" and rank.index == 1:
            time.sleep(0.1)

        def say(key, tensor, tokens=None):
            if self.way == "label" and key == "labels":
                tensor = tensor + 1
            if self.way == "nan" and key == "loss":
                tensor = tensor * float("nan")
            beside = self.way == "beside" and dist.get_world_size() != case.ranks
            if (self.way == "half" or beside) and key.startswith("grad."):
                tensor = tensor * 2
            if self.way == "lost" and key == "nll" and rank.index == 1:
                tensor, tokens = tensor[1:], tokens[1:]
            emit(key, tensor, tokens)

        super().run(case, rank, say)

    def loss(self, case, batch, stream, nll, targets, rank):
        self.count, count = targets, self.count
        stale = self.way == "state" and count is not None
        return super().loss(case, batch, stream, nll, count if stale else targets, rank)


LABEL, NAN, CRASH, HANG = Mine("label"), Mine("nan"), Mine("crash"), Mine("hang")
LOST, STATE, HALF, RIGHT = Mine("lost"), Mine("state"), Mine("half"), Mine("right")
BESIDE = Mine("beside")

if __name__ == "__main__":
    sys.exit("not to be run")
'''


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of failure, and how its script ends."""

    name: str
    status: int = 1
    line: str = SMALL
    before: tuple[str, ...] = ()
    ranks: int = 0
    # A pattern in the output; empty if the script is only read and not run.
    prints: str = ""


FORMS = {
    form.name: form
    for form in (
        Form("LABEL"),
        Form("HALF", line=f"{SMALL} dtype=bf16"),
        Form("BESIDE", line="case/1 rows=2:11 sp=1", ranks=2, prints=r"expected .*, got "),
        Form("NAN", prints=r"loss \[\]: expected [\d.]+, got nan; it was nan"),
        Form("LOST", prints=r"nll: token lost, \(4,\)"),
        Form(
            "STATE",
            line=f"{SMALL} dtype=bf16",
            before=(f"{OTHER_COUNT} dtype=bf16",),
            prints=r"expected [\d.]+, got [\d.]+",
        ),
        Form("CRASH", 3, prints=r"fault   a rank crashed, as it says above"),
        Form("HANG", 3, prints=r"a rank hung for 3 s and was killed(.|\n)+ in run\n"),
    )
}
SHORT = ("HANG", "NAN", "BESIDE")
RUN = [
    name if name in SHORT else pytest.param(name, marks=pytest.mark.long)
    for name, form in FORMS.items()
    if form.prints
]


class Seen(dict[str, Comparison]):
    """The comparison of each form, made when a test first asks for it."""

    def __init__(self, file: Path, pool: RankPool) -> None:
        self.file, self.session = file, Session(pool)

    def __missing__(self, name: str) -> Comparison:
        form = FORMS[name]
        job = Job(parse(form.line), locate(f"{self.file}:{name}"))
        before = [*map(parse, form.before)]
        self[name] = replay(job, self.session, before, form.ranks).comparison
        return self[name]


def run_script(file: Path) -> subprocess.CompletedProcess[str]:
    return run_to_end(sys.executable, file.name, cwd=file.parent)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("scripts") / "mine.py"
    file.write_text(MINE)
    return file


@pytest.fixture(scope="module")
def seen(mine: Path) -> Iterator[Seen]:
    with RankPool(2, deadline=3) as pool:
        yield Seen(mine, pool)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_script_prints_what_the_harness_found(name: str, mine: Path, seen: Seen) -> None:
    form, comparison, file = FORMS[name], seen[name], mine.with_name(f"{name}.py")
    # A rank that hangs is killed after the deadline; the others may be slow.
    file.write_text(script(comparison, "cpu gloo 1", 3 if name == "HANG" else 60))
    outcome = run_script(file)
    assert outcome.returncode == form.status, outcome.stdout + outcome.stderr
    headline, _, first, *_ = explain(comparison).splitlines()
    lines = outcome.stdout.splitlines()
    assert lines[0] == headline
    if comparison.verdict is Verdict.DIVERGED:
        assert lines[1] == first
    assert re.search(form.prints, outcome.stdout)
    if name == "CRASH":
        assert "RuntimeError: out of luck" in outcome.stderr


# Sends SIGINT in a callback of `os.fork`, in which Python drops exceptions.
AT_FORK = "import os\nos.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), 2))\n"


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while a rank is forked", "once they are there"])
def test_a_script_that_is_stopped_reports_it_and_leaves_no_rank(
    mine: Path, seen: Seen, moment: str
) -> None:
    file = mine.with_name("stopped.py")
    is_early = moment == "while a rank is forked"
    head = "failure_shown = Scripted("
    text = script(seen["HANG"], "cpu gloo 1", 600)
    file.write_text(text.replace(head, AT_FORK + head) if is_early else text)
    ranks = []
    with subprocess.Popen(
        [sys.executable, file.name],
        cwd=file.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            if not is_early:
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
                assert eventually(lambda: len(children.read_text().split()) == 2)
                ranks = children.read_text().split()
                process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
        except BaseException:
            # Its ranks would keep the pipes open for ten minutes.
            process.send_signal(signal.SIGTERM)
            raise
    assert process.returncode == 3
    assert "stopped by SIGINT" in errors
    assert "Traceback" not in errors
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


@pytest.mark.slow
def test_the_script_of_a_repaired_step_prints_gone_and_exits_with_0(
    mine: Path, seen: Seen
) -> None:
    text = script(seen["LABEL"], "cpu gloo 1", 60)
    file = mine.with_name("repaired.py")
    file.write_text(text.replace("judge(LABEL.run)", "judge(RIGHT.run)"))
    outcome = run_script(file)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith("GONE")


@pytest.mark.slow
def test_a_script_has_the_source_of_the_step_unchanged_and_the_wrong_numbers(
    seen: Seen,
) -> None:
    text = script(seen["LABEL"], "cpu gloo 1", 20)
    body = MINE.partition("import sys\n")[2].partition('\nif __name__ == "__main__"')[0]
    assert body in text
    assert "not to be run" not in text
    assert "        (0,): (6, 7),\n" in text
    assert str(parse(SMALL)) in text
    assert len(text.splitlines()) - len(MINE.splitlines()) < 50
    assert "from those of plain training on one device." in text
    itself = script(replace(seen["LABEL"], against="self"), "cpu gloo 1", 20)
    assert "from those of the same step at sp 1 in fp64." in itself


@pytest.mark.slow
def test_a_script_states_few_wrong_elements_the_first_included(
    seen: Seen,
) -> None:
    (elements,) = (
        ast.literal_eval(keyword.value)
        for node in ast.walk(ast.parse(script(seen["HALF"], "cpu gloo 1", 20)))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "elements"
    )
    first = seen["HALF"].measured.first
    assert first is not None
    assert next(iter(elements)) == first.index
    assert 1 < len(elements) <= MOST_ELEMENTS
    assert all(abs(got - expected) > first.allowed for expected, got in elements.values())


@pytest.mark.parametrize("name", ["mutants.B14", "benign.heads-first", "native-local"])
def test_a_candidate_of_the_harness_itself_gets_no_script(name: str) -> None:
    with pytest.raises(NoScript, match=f"{name} is part of the harness; `harness repro` shows it"):
        source_of(name)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("from .other import MINE", "a relative import leads nowhere from a single file"),
        ("import torch, parts.other", "imports parts from beside it, which is no single file"),
        ("from circular import MINE", "mine and circular import each other"),
    ],
)
def test_a_source_that_imports_what_is_no_single_file_gets_no_script(
    line: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(f"{line}\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/__init__.py").touch()
    (tmp_path / "circular.py").write_text("import mine\n")
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py:MINE", f"{tmp_path}/mine.py:MINE", "mine:MINE"):
        with pytest.raises(NoScript, match=f"{name}: {why}"):
            source_of(name)


# The step lies in three files, the first of which imports the others.
BESIDE_IT = {
    "mine.py": "import deeper\nfrom labels import Wrong\n\nassert deeper.SHIFT\nMINE = Wrong()\n",
    "labels.py": """\
from __future__ import annotations

from harness.candidates.own.native import LocalDialect


class Wrong(LocalDialect):
    name = 'mine'

    def run(self, case: Undefined, rank, emit):
        from deeper import SHIFT

        def say(key, tensor, tokens=None):
            emit(key, tensor + SHIFT if key == "labels" else tensor, tokens)

        super().run(case, rank, say)
""",
    "deeper.py": "'''Has a \\\\ and both \"\"\" quotes.'''\nSHIFT = 1",
}


@pytest.mark.slow
def test_the_script_of_a_step_in_several_files_shows_the_failure_without_the_other_files(
    tmp_path: Path, seen: Seen
) -> None:
    for name, text in BESIDE_IT.items():
        (tmp_path / name).write_text(text)
    job = Job(parse(SMALL), locate(f"{tmp_path}/mine.py:MINE"))
    comparison = replay(job, seen.session, (), 0).comparison
    assert list(source_of(comparison.candidate).beside) == ["deeper", "labels"]
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    file = folder / "script.py"
    file.write_text(script(comparison, "cpu gloo 1", 60))
    outcome = run_script(file)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert outcome.stdout.splitlines()[1] == explain(comparison).splitlines()[2]


@pytest.mark.parametrize(
    ("comparison", "why"),
    [
        (None, "there is nothing to show: no case failed"),
        (unsupported_comparison(parse(SMALL), "x.py:X", "too long"), "there is nothing to show"),
        (
            fault_comparison(parse(SMALL), "x.py:X", Fault(kind=Kind.VACUOUS, summary="nothing")),
            r"only `harness repro` shows this fault \(vacuous\)",
        ),
        (
            fault_comparison(
                parse(SMALL),
                "x.py:X",
                Fault(kind=Kind.RAISED, summary="rank 0 raised", last_key="supports()"),
            ),
            r"only `harness repro` shows this fault \(raised\)",
        ),
    ],
)
def test_no_script_is_written_if_it_could_show_nothing(
    comparison: Comparison | None, why: str
) -> None:
    with pytest.raises(NoScript, match=why):
        script(comparison, "cpu gloo 1", 20)


def test_a_slice_of_a_module_has_only_the_source_that_the_step_needs() -> None:
    module = '''"""A module."""
import os, sys
from a import (
    b,
    c,
)

prepare()
# Why it is so.
SIZE: "Count" = 3
Count = int
TABLE = {"x": one, "y": two}


def step(n: "Count") -> None:
    return TABLE[n] + SIZE + b


@sys.known
def one():
    pass


def two():
    return c


def unused():
    return os
'''
    assert (
        slice_source(module, {"step"}, {"x"})
        == """import sys
from a import b

prepare()

# Why it is so.
SIZE: "Count" = 3
Count = int
TABLE = {'x': one}

def step(n: "Count") -> None:
    return TABLE[n] + SIZE + b

@sys.known
def one():
    pass"""
    )


@pytest.mark.parametrize(("device", "forks"), [("cpu", True), ("cuda:0", False)])
def test_a_script_forks_its_ranks_on_a_cpu_and_not_on_a_gpu(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, forks: bool
) -> None:
    entrypoints = []

    class FakeProcesses:
        def __init__(self, **arguments: Any) -> None:
            entrypoints.append(arguments["entrypoint"])

        def wait(self, period: float) -> None:
            pass

    monkeypatch.setattr("torch.distributed.elastic.multiprocessing.start_processes", FakeProcesses)
    monkeypatch.setattr(script_runtime, "bury_all_below", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(script_runtime.FOLDER, "")
    order = Order(ranks=2, environment=Placement((device,)).environment(), launch="")
    script_runtime._run_ranks(order, "script.py", tmp_path)
    assert entrypoints == [script_runtime._run_as_main if forks else sys.executable]
