"""The scripts for two GPUs show their bugs, with the CPU in place of each GPU."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.candidates.published.bugs import Bug
from harness.candidates.published.environment import Environment
from harness.candidates.published.library import Library, libraries
from harness.conformance import gpu_script_of
from harness.conformance.scripts import FOLDER, shell
from harness.conformance.upstream_reports import file_of, findings_of
from properties.helpers.places import ROOT

DOCS = ROOT / "docs"
ON_THE_CPU = ROOT / "properties/planted/on_the_cpu.py"
OFFERED = [
    (library, bug)
    for library in libraries().values()
    for bug in findings_of(library)
    if gpu_script_of(library, bug, DOCS).is_file()
]
# What stands in for GPUs' kernels and for what is not installed, as `on_the_cpu.py` takes it.
STAND_INS = {
    "areal": ("harness.candidates.published.areal.library",),
    "deepspeed": ("harness.candidates.published.deepspeed.world",),
    "llama_factory": ("harness.candidates.published.llama_factory.library",),
    "lmms_engine": (
        "harness.candidates.published.lmms_engine.library",
        "properties.planted.plain_liger",
    ),
    "megatron_core": ("harness.candidates.published.megatron_core.library",),
    "ms_swift": (
        "harness.candidates.published.ms_swift.library",
        "harness.candidates.published.ms_swift.released",
        *("modelscope.hub.api:HubApi", "peft:PeftModel"),
        *("swift.model:ModelMeta", "swift.utils:deep_getattr"),
    ),
    "nemo_automodel": ("harness.candidates.published.wiring.ring_on_cpu",),
    "openrlhf": ("harness.candidates.published.openrlhf.library",),
    "skyrl": (
        "harness.candidates.published.skyrl.library",
        "properties.planted.skyrl_workers",
    ),
    "transformers_trainer": ("harness.candidates.published.wiring.trainer",),
    "trl": ("harness.candidates.published.wiring.trainer",),
    "twinkle": ("harness.candidates.published.twinkle.library",),
    "verl": ("harness.candidates.published.verl.released",),
    "xtuner": ("xtuner", "xtuner.parallel", "xtuner.parallel.sequence"),
    "yunchang": ("harness.candidates.published.yunchang.library",),
}

each_script = pytest.mark.parametrize(
    ("library", "bug"), OFFERED, ids=[f"{library.name}-{bug.key}" for library, bug in OFFERED]
)


def test_each_script_for_gpus_belongs_to_a_finding() -> None:
    kept = (DOCS / FOLDER).glob("*/gpu/*")
    offered = {gpu_script_of(library, bug, DOCS) for library, bug in OFFERED}
    assert {path for path in kept if path.name != "__pycache__"} == offered
    assert offered


@each_script
def test_a_page_says_how_its_script_for_gpus_is_run_and_that_it_was_not(
    library: Library, bug: Bug
) -> None:
    page = (DOCS / file_of(library, bug)).read_text()
    section = page.partition("\n## On two GPUs\n")[2].partition("\n## ")[0]
    assert f"](gpu/{bug.key}.py)" in section
    assert f"\ntorchrun --nproc-per-node 2 gpu/{bug.key}.py\n" in section
    assert "not run on GPUs" in section


@each_script
def test_a_script_for_gpus_is_short_stands_alone_and_patches_nothing(
    library: Library, bug: Bug
) -> None:
    source = gpu_script_of(library, bug, DOCS).read_text()
    tree = ast.parse(source)
    docstring = ast.get_docstring(tree) or ""
    assert bug.title in " ".join(docstring.split())
    assert f"torchrun --nproc-per-node 2 {bug.key}.py" in docstring
    assert f"{library.distribution} {library.pinned}" in docstring
    # torchrun ends the others when one fails: only the rank that prints may end with 1.
    assert not re.search(r"^sys\.exit\(int\((?!rank == 0)", source, re.MULTILINE)
    code = source.split('"""', 2)[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    assert not re.search(r"\bharness\b|sys\.modules|setattr|mock", source)
    # It sets no attribute of what it imports.
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            assert ast.unparse(node).partition(".")[0] not in imported
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "-"]
    checked = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.library
@each_script
def test_a_script_for_gpus_shows_its_bug_and_with_control_none(
    library: Library, bug: Bug, tmp_path: Path
) -> None:
    environment = Environment(library, library.pinned)
    if not environment.installed:
        pytest.skip(f"{library.distribution} {library.pinned} is not installed")
    assert status(environment.python, library, bug, "", tmp_path) == 1
    assert status(environment.python, library, bug, "--control", tmp_path) == 0


def status(python: str, library: Library, bug: Bug, argument: str, folder: Path) -> int:
    """Run the script on the CPU -> its exit status."""
    script = gpu_script_of(library, bug, DOCS)
    stand_ins = ",".join(STAND_INS[library.name])
    launch = f"{python} -m torch.distributed.run --nproc-per-node 2 {ON_THE_CPU}"
    shown = shell(
        f"PYTHONPATH={ROOT} OMP_NUM_THREADS=1 {launch} {stand_ins} {script} {argument};"
        ' echo "exit status $?"',
        folder,
    )
    # A script that fails in another way prints neither.
    assert "expected" in shown, shown
    assert "got" in shown, shown
    # No error is larger than a bound if it is not a number.
    assert not (argument and re.search(r"\bnan\b", shown)), shown
    return int(shown.split()[-1])
