"""A visit of the GPU tier keeps its limit of time, and its results are whole at every moment."""

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

from properties.helpers.commands import run_to_end
from properties.helpers.places import ROOT
from properties.helpers.wait import eventually

# A program that ignores signals to end, and has a child that runs on.
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
    """Return a function that makes a step of some Python code."""

    def make(name: str, code: str, *more: str, most: int = 30, **options: object) -> Step:
        file = tmp_path / f"{name}.py"
        file.write_text(code)
        words = " ".join([str(file), *more])
        return Step(name, "nothing", words, most, least=0, **options)  # type: ignore[arg-type]

    return make


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
    """Return the files in the archive."""
    content = (folder / "out" / "gpu-results.tar.gz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        return {name: file.read() for name, file in files.items() if file}


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    with contextlib.suppress(FileNotFoundError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def test_a_step_that_exceeds_its_share_is_killed_with_its_children_and_the_next_step_runs(
    tmp_path: Path, program: Program
) -> None:
    steps = [program("stubborn", STUBBORN, most=2), program("quick", "print('{}')")]
    assert visit(tmp_path).run(steps) == 124
    page = packed(tmp_path)["summary.md"].decode()
    assert "| stubborn | **124** | 2 | cut off; " in page
    assert "| quick | 0 |" in page
    child = int(packed(tmp_path)["stubborn.json"])
    assert eventually(lambda: not is_running(child))


def test_steps_that_do_not_fit_or_cannot_run_here_are_left_out_and_shown(
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


def test_a_sized_step_gets_as_many_cases_as_the_probe_says_will_fit(
    tmp_path: Path, program: Program
) -> None:
    steps = [
        program("probe", 'print(\'{"cases": 20, "seconds": 0.01}\')'),
        program("sized", "import sys; print(sys.argv[1])", "{cases}", most=10),
    ]
    two_steps = visit(tmp_path)
    assert two_steps.run(steps) == 0
    cases = int(packed(tmp_path)["sized.json"])
    assert cases == fitting(10, *two_steps.probe) > FEWEST
    assert f"; {cases} cases |" in packed(tmp_path)["summary.md"].decode()


def test_the_number_of_cases_follows_from_the_seconds_of_the_probe() -> None:
    # The probe took 24 seconds and judged 20 cases twice in 4 seconds each. So a step judges 5
    # cases per second, after a start of 16 seconds; 30 % of its share is kept.
    probe = {"cases": 20, "seconds": 4.0}
    assert fitting(100.0, probe, 24.0) == 5 * (70 - 16)
    assert fitting(10.0, probe, 24.0) == FEWEST
    assert fitting(100.0, probe | {"ended": "interrupted"}, 24.0) == FEWEST
    assert fitting(100.0, {}, 24.0) == fitting(100.0, probe | {"cases": 0}, 24.0) == FEWEST


@given(
    spent=st.lists(st.floats(0.0, 1.0), min_size=len(STEPS), max_size=len(STEPS)),
    limit=st.floats(1.0, 10_000.0),
)
def test_the_shares_never_add_up_to_more_than_the_limit(spent: list[float], limit: float) -> None:
    left = limit
    for number, step in enumerate(STEPS):
        seconds = share(step, STEPS[number + 1 :], left)
        assert seconds == 0 or step.least <= seconds <= step.most
        assert seconds <= left
        left -= spent[number] * seconds


def test_sized_steps_share_what_is_left_and_other_steps_get_their_limit() -> None:
    steps = {step.name: step for step in STEPS}
    one, other, golden = steps["check-fp64"], steps["check-bf16"], steps["golden"]
    assert share(one, [other], 200.0) == 100
    assert share(golden, [one, other], 200.0) == golden.most
    assert share(one, [], float("inf")) == one.most


@pytest.mark.parametrize("plan", PLANS)
def test_every_step_is_in_a_plan_and_sized_steps_come_after_the_probe(plan: str) -> None:
    assert {step for each in PLANS.values() for step in each} == {step.name for step in STEPS}
    steps = chosen([plan], sized=True)
    names = [step.name for step in steps]
    assert set(PLANS[plan]) <= set(names)
    first = next((number for number, step in enumerate(steps) if step.sized), None)
    assert first is None or "probe" in names[:first]


def test_later_steps_avoid_cudnn_if_the_attention_that_torch_chooses_raises(
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
    """Start a visit; yield it when its first step is done and its second one runs."""
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
    output = tmp_path / "out" / "stubborn.json"
    try:
        assert eventually(lambda: output.exists() and output.read_text().endswith("\n"))
        yield process
    finally:
        process.kill()
        process.wait()
    child = int(output.read_text())
    if is_running(child):
        os.killpg(os.getpgid(child), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "shown"),
    [
        (signal.SIGKILL, -signal.SIGKILL, "| stubborn | running |"),
        (signal.SIGTERM, 143, "| never | left out |  | interrupted |"),
    ],
)
def test_a_run_that_is_killed_leaves_a_whole_archive_and_one_that_is_asked_to_end_completes_it(
    number: signal.Signals, status: int, shown: str, tmp_path: Path, under_way: Started
) -> None:
    under_way.send_signal(number)
    assert under_way.wait(30) == status
    files = packed(tmp_path)
    assert files["quick.json"] == b"{}\n"
    page = files["summary.md"].decode()
    assert "| quick | 0 |" in page
    assert shown in page
    if number == signal.SIGTERM:
        assert "| stubborn | **143** |" in page
        assert eventually(lambda: not is_running(int(files["stubborn.json"])))


def test_files_that_are_too_large_are_left_out_of_the_archive_and_listed(tmp_path: Path) -> None:
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


def test_another_nccl_is_preloaded_only_in_steps_that_need_it(
    tmp_path: Path, program: Program
) -> None:
    code = "import os; print(os.environ.get('LD_PRELOAD', 'torch has its own'))"
    needs, other = program("needs", code, nccl=True), program("other", code)
    with_nccl = visit(tmp_path)
    # Stands in for a library: every process has loaded it already.
    with_nccl.nccl = "libc.so.6"
    assert with_nccl.run([needs, other]) == 0
    outputs = [(tmp_path / "out" / f"{name}.json").read_text() for name in ("needs", "other")]
    assert outputs == ["libc.so.6\n", "torch has its own\n"]


FATBIN, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI")


def kernels_for(*gpus: int) -> bytes:
    """Pack kernels as a compiler does: for each GPU 64 bytes, all of which are its number."""
    entries = b"".join(
        ENTRY.pack(2, 257, ENTRY.size, 64, 0, 0, 0, 0, gpu) + bytes([gpu]) * 64 for gpu in gpus
    )
    return FATBIN.pack(0xBA55ED50, 1, FATBIN.size, len(entries)) + entries


def test_a_library_is_packed_with_the_kernels_of_one_gpu_only(tmp_path: Path) -> None:
    # This header looks like that of kernels, but its version is another one.
    before = b"code" + FATBIN.pack(0xBA55ED50, 7, 7, 7) + b"data"
    library = before + kernels_for(80, 90, 100) + b"more" + kernels_for(90)
    wheel, packed_in = tmp_path / "nccl.whl", tmp_path / "libnccl.so.2.xz"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("nvidia/nccl/lib/libnccl.so.2", library)
    command = (sys.executable, ROOT / "ci" / "nccl.py", wheel)
    assert run_to_end(*command, "90", packed_in).returncode == 0
    emptied = library
    for other in (80, 100):
        emptied = emptied.replace(bytes([other]) * 64, bytes(64))
    assert lzma.decompress(packed_in.read_bytes()) == emptied
    refused = run_to_end(*command, "75", packed_in)
    assert refused.returncode == 1
    assert refused.stderr.endswith("nccl.whl: has no kernels for sm_75\n")
