"""A visit to a GPU keeps to its time, and what it found is whole at every moment."""

import contextlib
import io
import json
import lzma
import os
import random
import signal
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tier.archive import LIST, pack
from tier.shares import FEWEST, fitting, share
from tier.steps import CUDA, PLANS, STEPS, Step, chosen
from tier.visit import WITHOUT_CUDNN, Visit

from properties.helpers.commands import ran
from properties.helpers.places import ROOT
from properties.helpers.wait import eventually

# Ends when it is told to, but not at once; and has a child that does not end at all.
STUBBORN = """
import signal, subprocess, sys
ignore = lambda *_: None
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, ignore)
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
while True:
    signal.pause()
"""

Program = Callable[..., Step]
Started = subprocess.Popen[bytes]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A step that runs a little Python."""

    def written(name: str, code: str, *more: str, most: int = 30, **options: object) -> Step:
        file = tmp_path / f"{name}.py"
        file.write_text(code)
        words = " ".join([str(file), *more])
        return Step(name, "nothing", words, most, least=0, **options)  # type: ignore[arg-type]

    return written


def visit(folder: Path, limit: float = 60.0) -> Visit:
    return Visit(
        out=folder / "out",
        archive=folder / "out" / "gpu-results.tar.gz",
        python=sys.executable,
        device="cpu",
        deadline=30.0,
        most_cases=0,
        limit=limit,
        paths=(),
    )


def packed(folder: Path) -> dict[str, bytes]:
    """What is in the archive."""
    content = (folder / "out" / "gpu-results.tar.gz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = {member.name: tar.extractfile(member) for member in tar}
        return {name: file.read() for name, file in found.items() if file}


def is_there(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for is none."""
    with contextlib.suppress(FileNotFoundError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def test_a_step_that_outlasts_its_share_is_cut_with_all_that_it_started_and_the_rest_is_told(
    tmp_path: Path, program: Program
) -> None:
    steps = [program("stubborn", STUBBORN, most=2), program("quick", "print('{}')")]
    assert visit(tmp_path).run(steps) == 124
    page = packed(tmp_path)["summary.md"].decode()
    assert "| stubborn | **124** | 2 | cut off; " in page
    assert "| quick | 0 |" in page
    child = int(packed(tmp_path)["stubborn.json"])
    assert eventually(lambda: not is_there(child))


def test_what_does_not_fit_and_what_says_nothing_here_is_left_out_and_shown(
    tmp_path: Path, program: Program
) -> None:
    steps = [
        program("elsewhere", "", devices=CUDA),
        program("lacking", "", module="not_a_module"),
        program("here", "print('{}')"),
        Step("last", "nothing", "nothing.py", most=100, least=50),
    ]
    assert visit(tmp_path, limit=20.0).run(steps) == 0
    page = packed(tmp_path)["summary.md"].decode()
    assert "| elsewhere | left out |  | not on cpu, only on cuda |" in page
    assert "| lacking | left out |  | not_a_module is not installed |" in page
    assert "| here | 0 |" in page
    assert "| last | left out |  | 1" in page
    assert " s were left, and it needs 50 |" in page


def test_cases_are_as_many_as_fit_by_the_probe(tmp_path: Path, program: Program) -> None:
    steps = [
        program("probe", 'print(\'{"cases": 20, "seconds": 0.01}\')'),
        program("sized", "import sys; print(sys.argv[1])", "{cases}", most=10),
    ]
    mine = visit(tmp_path)
    assert mine.run(steps) == 0
    cases = int(packed(tmp_path)["sized.json"])
    assert cases == fitting(10, *mine.probe) > FEWEST
    assert f"; {cases} cases |" in packed(tmp_path)["summary.md"].decode()


def test_the_arithmetic_of_a_probe() -> None:
    # 24 seconds, 4 of them for 20 cases and 4 for them again: 5 in a second, after 16 seconds.
    probe = {"cases": 20, "seconds": 4.0}
    assert fitting(100.0, probe, 24.0) == 5 * (70 - 16)
    assert fitting(10.0, probe, 24.0) == FEWEST
    assert fitting(100.0, probe | {"ended": "interrupted"}, 24.0) == FEWEST
    assert fitting(100.0, {}, 24.0) == fitting(100.0, probe | {"cases": 0}, 24.0) == FEWEST


@given(
    spent=st.lists(st.floats(0.0, 1.0), min_size=len(STEPS), max_size=len(STEPS)),
    limit=st.floats(1.0, 10_000.0),
)
def test_shares_never_add_up_to_more_than_there_is(spent: list[float], limit: float) -> None:
    left = limit
    for number, step in enumerate(STEPS):
        seconds = share(step, STEPS[number + 1 :], left)
        assert seconds == 0 or step.least <= seconds <= step.most
        assert seconds <= left
        left -= spent[number] * seconds


def test_generated_cases_get_their_part_and_what_cannot_be_shorter_what_it_needs() -> None:
    steps = {step.name: step for step in STEPS}
    one, other, golden = steps["check-fp64"], steps["check-bf16"], steps["golden"]
    assert share(one, [other], 200.0) == 100
    assert share(golden, [one, other], 200.0) == golden.most
    assert share(one, [], float("inf")) == one.most


@pytest.mark.parametrize("plan", PLANS)
def test_every_step_is_in_a_plan_and_what_needs_a_probe_has_one(plan: str) -> None:
    assert {step for each in PLANS.values() for step in each} == {step.name for step in STEPS}
    steps = chosen([plan], sized=True)
    names = [step.name for step in steps]
    assert set(PLANS[plan]) <= set(names)
    first = next((number for number, step in enumerate(steps) if step.sized), None)
    assert first is None or "probe" in names[:first]


def test_where_torch_chooses_what_raises_later_steps_have_another(
    tmp_path: Path, program: Program
) -> None:
    steps = [
        program("attention", "print('{\"raised\": [1]}')"),
        program("later", f"import os; print(os.environ['{WITHOUT_CUDNN}'])"),
    ]
    assert visit(tmp_path).run(steps) == 0
    assert packed(tmp_path)["later.json"] == b"1\n"
    assert f"later steps have {WITHOUT_CUDNN}=1" in packed(tmp_path)["summary.md"].decode()


@pytest.fixture
def under_way(tmp_path: Path) -> Iterator[Started]:
    """A run whose first step is done, and whose second goes on and on."""
    (tmp_path / "tier.py").write_text(
        f"import sys\nsys.path[:0] = [{str(ROOT / 'ci')!r}]\n"
        "from pathlib import Path\nimport gpu\nfrom tier.steps import Step\n"
        "import signal\nfrom tier.visit import Visit\n"
        "for number in gpu.ENDING_SIGNALS:\n    signal.signal(number, gpu.interrupt)\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "steps = [Step(name, '', str(folder / name) + '.py', 60, 0) for name in "
        "('quick', 'stubborn', 'never')]\n"
        "visit = Visit(out=folder / 'out', archive=folder / 'out' / 'gpu-results.tar.gz', "
        "python=sys.executable, device='cpu', deadline=1.0, most_cases=0, limit=60.0, paths=())\n"
        "sys.exit(visit.run(steps))\n"
    )
    (tmp_path / "quick.py").write_text("print('{}')")
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    process = subprocess.Popen([sys.executable, tmp_path / "tier.py"], stdout=subprocess.DEVNULL)
    said = tmp_path / "out" / "stubborn.json"
    try:
        assert eventually(lambda: said.exists() and said.read_text().endswith("\n"))
        yield process
    finally:
        process.kill()
        process.wait()
    child = int(said.read_text())
    if is_there(child):
        os.killpg(os.getpgid(child), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "shown"),
    [
        (signal.SIGKILL, -signal.SIGKILL, "| stubborn | running |"),
        (signal.SIGTERM, 143, "| never | left out |  | interrupted |"),
    ],
)
def test_whatever_ends_a_run_the_archive_is_whole_and_who_asks_gets_all_that_is_known(
    number: signal.Signals, status: int, shown: str, tmp_path: Path, under_way: Started
) -> None:
    under_way.send_signal(number)
    assert under_way.wait(30) == status
    found = packed(tmp_path)
    assert found["quick.json"] == b"{}\n"
    page = found["summary.md"].decode()
    assert "| quick | 0 |" in page
    assert shown in page
    if number == signal.SIGTERM:
        assert "| stubborn | **143** |" in page
        assert eventually(lambda: not is_there(int(found["stubborn.json"])))


def test_what_is_too_large_is_left_out_of_the_archive_and_listed(tmp_path: Path) -> None:
    noise, out, failures = random.Random(0), tmp_path / "out", tmp_path / "failures"
    sizes = {
        "summary.md": 1000, "check.json": 40_000, "check.txt": 90_000, "tests.txt": 50_000,
        "bf16/vectors/one.json": 40_000,
    }  # fmt: skip
    for name, size in sizes.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(noise.randbytes(size))
    for bundle in ("old", "new"):
        (failures / bundle).mkdir(parents=True)
        (failures / bundle / "failure.json").write_text("{}")
    os.utime(failures / "old", (1, 1))
    most = LIST + 120_000
    content = pack(out, failures, since=2.0, most=most)
    assert len(content) < most
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        kept, listing = tar.getnames(), tar.extractfile("left-out.json")
        assert listing
        assert json.loads(listing.read()) == {"check.txt": 90_000, "bf16/vectors/one.json": 40_000}
    kinds = ["summary.md", "check.json", "failures/new/failure.json", "tests.txt", "left-out.json"]
    assert kept == kinds


def test_an_nccl_that_was_brought_along_is_preloaded_where_it_is_needed_and_nowhere_else(
    tmp_path: Path, program: Program
) -> None:
    told = "import os; print(os.environ.get('LD_PRELOAD', 'torch has its own'))"
    needs, other = program("needs", told, nccl=True), program("other", told)
    asked = visit(tmp_path)
    # Any library will do: this one is there already.
    asked.nccl = "libc.so.6"
    assert asked.run([needs, other]) == 0
    said = [(tmp_path / "out" / f"{name}.json").read_text() for name in ("needs", "other")]
    assert said == ["libc.so.6\n", "torch has its own\n"]


FATBIN, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI")


def kernels_for(*gpus: int) -> bytes:
    """As a compiler packs them: 64 bytes for each GPU, full of its number."""
    entries = b"".join(
        ENTRY.pack(2, 257, ENTRY.size, 64, 0, 0, 0, 0, gpu) + bytes([gpu]) * 64 for gpu in gpus
    )
    return FATBIN.pack(0xBA55ED50, 1, FATBIN.size, len(entries)) + entries


def test_a_library_is_packed_with_the_kernels_of_one_gpu_only(tmp_path: Path) -> None:
    # The second looks like kernels, and is none.
    before = b"code" + FATBIN.pack(0xBA55ED50, 7, 7, 7) + b"data"
    library = before + kernels_for(80, 90, 100) + b"more" + kernels_for(90)
    wheel, packed_in = tmp_path / "nccl.whl", tmp_path / "libnccl.so.2.xz"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("nvidia/nccl/lib/libnccl.so.2", library)
    command = (sys.executable, ROOT / "ci" / "nccl.py", wheel)
    assert ran(*command, "90", packed_in).returncode == 0
    emptied = library
    for other in (80, 100):
        emptied = emptied.replace(bytes([other]) * 64, bytes(64))
    assert lzma.decompress(packed_in.read_bytes()) == emptied
    refused = ran(*command, "75", packed_in)
    assert refused.returncode == 1
    assert refused.stderr.endswith("nccl.whl: has no kernels for sm_75\n")
