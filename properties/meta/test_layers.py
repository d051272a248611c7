import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness

PACKAGE = Path(harness.__file__).parent

PROCESSES = {"subprocess", "multiprocessing", "socket", "selectors", "torch.distributed"}
CASE_AND_TRACE = {"harness.case", "harness.trace"}
LIBRARIES = {
    *("torch", "numpy", "hypothesis", "pytest", "rich", "safetensors", "flash_attn"),
    *("packaging", "transformers"),
}

# What a part may import besides itself and the unsuspicious rest of the standard library.
LAYERS: dict[str, set[str]] = {
    "harness": set(),
    "harness.__main__": {"harness.cli"},
    "harness.case": set(),
    "harness.verdict": set(),
    "harness.precision": {"torch"},
    "harness.campaign": {"harness.case"},
    "harness.plan": {"harness.case"},
    "harness.situations": {"harness.case", "harness.plan"},
    "harness.known": {
        "harness.candidates",
        "harness.candidates.environment",
        "harness.compare",
        "harness.situations",
    },
    "harness.strategies": {"harness.case", "harness.plan", "harness.situations", "hypothesis"},
    "harness.trace": {"harness.case", "torch", "numpy"},
    "harness.reference.weights": {"harness.case", "torch", "numpy"},
    "harness.reference.decoder": {"harness.case", "harness.reference.weights", "torch"},
    "harness.reference": {
        "harness.case",
        "harness.reference.decoder",
        "harness.reference.weights",
        "harness.trace",
        "torch",
        "numpy",
    },
    "harness.compare": {*CASE_AND_TRACE, "harness.verdict", "numpy", "torch"},
    "harness.anomaly": {"harness.compare", "harness.plan", *CASE_AND_TRACE, "numpy"},
    "harness.candidates": {
        "harness.candidates.environment",
        "harness.case",
        "torch",
        "torch.distributed",
    },
    "harness.candidates.environment": {"harness.candidates", "subprocess"},
    "harness.candidates.wiring.limits": {"harness.case"},
    "harness.candidates.wiring": {
        "harness.candidates",
        "harness.case",
        "harness.reference.decoder",
        "harness.reference.weights",
        "packaging",
        "torch",
        "torch.distributed",
        "transformers",
    },
    "harness.candidates.native": {
        "harness.candidates",
        "harness.case",
        "harness.plan",
        "harness.reference.decoder",
        "harness.reference.weights",
        "torch",
        "torch.distributed",
    },
    "harness.candidates.mutants": {
        "harness.candidates",
        "harness.candidates.native",
        "harness.case",
        "harness.plan",
        "harness.reference.decoder",
        "torch",
        "torch.distributed",
    },
    "harness.candidates.benign": {
        "harness.candidates",
        "harness.candidates.native",
        "harness.case",
        "harness.plan",
        "harness.reference.decoder",
        "harness.reference.weights",
        "torch",
        "torch.distributed",
    },
    "harness.rivals": {*CASE_AND_TRACE, "numpy"},
    "harness.ranks": {
        "harness",
        "harness.candidates",
        "harness.case",
        "harness.precision",
        "harness.trace",
        "numpy",
        "torch",
        *PROCESSES,
    },
    "harness.pretend": {"numpy", "torch"},
    "harness.golden": {
        "harness.compare",
        "harness.situations",
        *CASE_AND_TRACE,
        "numpy",
        "safetensors",
    },
    "harness.golden.provenance": {"harness", "numpy", "torch", "subprocess"},
    "harness.golden.generate": {
        "harness.compare",
        "harness.golden",
        "harness.reference",
        "harness.trace",
        "harness.case",
        "torch",
    },
    "harness.golden.recorded": {
        "harness.case",
        "harness.compare",
        "harness.golden",
        "harness.ranks",
        "harness.run",
        "harness.trace",
    },
    "harness.golden.verify": {
        "harness.blame",
        "harness.case",
        "harness.compare",
        "harness.golden",
        "harness.ranks",
        "harness.report",
        "harness.run",
        "harness.trace",
    },
    "harness.golden.table": {
        "harness.compare",
        "harness.golden",
        "harness.golden.verify",
        "harness.report",
        "rich",
    },
    "harness.report": {
        "harness",
        "harness.anomaly",
        "harness.campaign",
        "harness.compare",
        "harness.verdict",
        *CASE_AND_TRACE,
        "numpy",
        "rich",
        "safetensors",
    },
    "harness.keep": {"harness.campaign", "harness.compare", "harness.ranks", "harness.report"},
    "harness.reduce": {"harness.case", "harness.compare", "harness.search"},
    "harness.replay": {
        "harness.campaign",
        "harness.case",
        "harness.check",
        "harness.compare",
        "harness.fresh",
        "harness.keep",
        "harness.ranks",
        "harness.reduce",
        "harness.report",
        "harness.run",
        "harness.search",
    },
    "harness.script": {
        "harness.candidates",
        "harness.candidates.environment",
        "harness.case",
    },
    # Read, and never imported.
    "harness.script.inside": {
        "harness.candidates",
        "harness.candidates.native",
        "harness.case",
        "harness.compare",
        "harness.reference",
        "harness.reference.weights",
        "numpy",
        "torch",
        "torch.distributed",
    },
    "harness.search": {
        "harness.case",
        "harness.compare",
        "harness.strategies",
        "harness.trace",
        "hypothesis",
    },
    "harness.blame": {
        "harness.compare",
        "harness.precision",
        "harness.reference",
        *CASE_AND_TRACE,
        "torch",
    },
    "harness.run": {
        "harness.anomaly",
        "harness.blame",
        "harness.candidates",
        "harness.case",
        "harness.compare",
        "harness.ranks",
        "harness.reference",
        "harness.trace",
        "torch",
    },
    "harness.fresh": {
        "harness.candidates",
        "harness.case",
        "harness.compare",
        "harness.ranks",
        "harness.run",
        "harness.search",
    },
    "harness.check": {
        "harness",
        "harness.known",
        "harness.campaign",
        "harness.case",
        "harness.compare",
        "harness.fresh",
        "harness.keep",
        "harness.plan",
        "harness.ranks",
        "harness.report",
        "harness.run",
        "harness.search",
        "harness.situations",
        "harness.strategies",
        "hypothesis",
        "rich",
    },
    "harness.detection": {
        "harness.candidates",
        "harness.case",
        "harness.compare",
        "harness.ranks",
        "harness.report",
        "harness.rivals",
        "harness.run",
        "harness.search",
        "harness.situations",
        "harness.trace",
        "rich",
    },
    "harness.conformance": {
        "harness.candidates",
        "harness.candidates.environment",
        "harness.case",
        "harness.compare",
        "harness.fresh",
        "harness.known",
        "harness.ranks",
        "harness.reduce",
        "harness.report",
        "harness.run",
        "harness.search",
        "harness.situations",
        "harness.strategies",
        "harness.trace",
    },
    "harness.doctor": {
        "harness",
        "harness.candidates.native",
        "harness.ranks",
        "torch",
        "torch.distributed",
        "rich",
    },
    "harness.commands": {"harness.campaign", "harness.case"},
    "harness.cli": {
        "harness",
        "harness.campaign",
        "harness.case",
        "harness.commands",
    },
    "harness.plugin": {"pytest"},
    "harness.plugin.blob": {"hypothesis"},
}
WIRED = [path.parent.name for path in PACKAGE.glob("candidates/*/requirements.txt")]
for name in WIRED:
    # Whatever runs in a rank, the library with it; its limits are read by the controller.
    LAYERS[f"harness.candidates.{name}"] = {
        "harness.candidates",
        "harness.candidates.wiring",
        "harness.case",
        "harness.reference.decoder",
        "harness.reference.weights",
        "torch",
        "torch.distributed",
        "transformers",
    }
    LAYERS[f"harness.candidates.{name}.limits"] = {
        "harness.candidates",
        "harness.candidates.wiring.limits",
        "harness.case",
    }
# One package, of which the releases that still have the old trainer are wired apart.
LAYERS["harness.candidates.verl_sft"].add("harness.candidates.verl")
# Added to that inside a function, or for the type checker only.
LATE: dict[str, set[str]] = {
    "harness.candidates.native": {"flash_attn"},
    "harness.commands": {
        "harness.candidates",
        "harness.candidates.benign",
        "harness.candidates.environment",
        "harness.candidates.mutants",
        "harness.check",
        "harness.conformance",
        "harness.detection",
        "harness.doctor",
        "harness.golden",
        "harness.golden.generate",
        "harness.golden.provenance",
        "harness.golden.recorded",
        "harness.golden.table",
        "harness.golden.verify",
        "harness.compare",
        "harness.ranks",
        "harness.replay",
        "harness.report",
        "harness.script",
        "harness.situations",
        "rich",
    },
    "harness.cli": {"harness.report"},
    "harness.ranks": {"harness.pretend"},
    "harness.plugin": {
        "harness.plugin.blob",
        "harness.case",
        "harness.compare",
        "harness.keep",
        "harness.ranks",
        "harness.report",
        "harness.run",
    },
}


def imports(node: ast.AST, *, late: bool = False) -> Iterator[tuple[str, bool]]:
    """Every dotted name that a file imports, and whether it waits for a call."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            place = "." * child.level + (child.module or "")
            yield from ((f"{place}.{alias.name}", late) for alias in child.names)
        else:
            waits = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            yield from imports(child, late=late or waits)


def part_of(name: str) -> str:
    """The longest entry of the table that a dotted name begins with; itself if there is none."""
    words = name.split(".")
    prefixes = (".".join(words[:n]) for n in range(len(words), 0, -1))
    known = LAYERS.keys() | PROCESSES | LIBRARIES
    return next((prefix for prefix in prefixes if prefix in known), name)


def violations(module: str, source: str) -> list[str]:
    """What a file imports and may not."""
    part = part_of(module)
    if part == "harness" != module:
        return [f"{module} belongs to no part of the table"]
    found = []
    for name, late in imports(ast.parse(source)):
        target = part_of(name)
        allowed = {part} | LAYERS[part] | (LATE.get(part, set()) if late else set())
        outside = not target.startswith("harness")
        free = target not in PROCESSES and target.partition(".")[0] in sys.stdlib_module_names
        # Only the wiring of a library imports the library.
        free = free or (outside and part.partition("harness.candidates.")[2] in WIRED)
        if target not in allowed and not free:
            found.append(f"{module} imports {name}")
    return found


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        words = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(words).removesuffix(".__init__"), path.read_text()


def test_every_part_imports_what_the_table_allows_and_nothing_else() -> None:
    files = dict(sources())
    assert len(files) > 40
    assert [wrong for name, source in files.items() for wrong in violations(name, source)] == []


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("harness.case.row", "import torch"),
        ("harness.case.row", "def late():\n    import numpy as np"),
        ("harness.case.case", "from harness.plan import plan"),
        ("harness.situations", "from harness.reference import reference"),
        ("harness.strategies", "import torch"),
        ("harness.reference.padded", "from harness.plan import plan"),
        ("harness.reference.padded", "from harness import plan"),
        ("harness.reference.decoder", "from harness.reference.padded import pad"),
        ("harness.trace.assemble", "import hypothesis"),
        ("harness.compare.compare", "from harness.ranks.pool import RankPool"),
        ("harness.compare.budget", "import subprocess"),
        ("harness.candidates.native.ulysses", "from harness.reference.padded import group_mean"),
        ("harness.candidates.native.ulysses", "from harness.reference import reference"),
        ("harness.candidates.native.ulysses", "from harness import compare"),
        # Names are given blindly.
        ("harness.anomaly.labels", "from harness.candidates.mutants import BANK"),
        ("harness.anomaly.naming", "from harness.candidates import load"),
        ("harness.candidates.registry", "import harness.candidates.native"),
        ("harness.ranks.worker", "def main():\n    from harness.compare import compare"),
        ("harness.ranks.pool", "from harness.candidates import native"),
        ("harness.report.text", "from harness.candidates import load"),
        ("harness.run", "import pytest"),
        ("harness.cli", "import rich"),
        ("harness.commands.check", "from harness.compare import Verdict"),
        ("harness.golden.tensors", "from harness.ranks.pool import RankPool"),
        ("harness.golden.contents", "from harness.reference import reference"),
        ("harness.commands.check", "def run():\n    import torch"),
        ("harness.plugin", "import torch"),
        ("harness.plan", "from .case import Case"),
        ("harness.plan", "import requests"),
    ],
)
def test_a_planted_import_is_seen(module: str, planted: str) -> None:
    source = dict(sources())[module]
    assert len(violations(module, f"{planted}\n{source}")) == len(violations(module, source)) + 1


def test_a_file_outside_the_table_is_seen() -> None:
    assert violations("harness.other", "") == ["harness.other belongs to no part of the table"]


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after one statement."""
    run = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)"],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stdout.split())


def test_cases_and_the_command_line_need_no_torch() -> None:
    loaded = loaded_by(
        "import harness.case, harness.plan, harness.situations, harness.strategies, harness.cli, "
        "harness.plugin"
    )
    assert {"harness.cli", "harness.strategies", "hypothesis"} <= loaded
    assert not {"torch", "numpy"} & loaded


def test_a_rank_can_connect_before_it_loads_anything_heavy() -> None:
    loaded = loaded_by("import harness.ranks.worker")
    assert not {"torch", "numpy", "hypothesis"} & loaded


def test_a_host_that_joins_loads_nothing_heavy_itself() -> None:
    loaded = loaded_by("import harness.ranks.node")
    assert not {"torch", "numpy", "hypothesis"} & loaded


def test_the_probe_sees_torch_where_it_is_loaded() -> None:
    assert {"torch", "numpy"} <= loaded_by("import harness.reference")


def test_help_answers_at_once() -> None:
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        command = [sys.executable, "-m", "harness", "--help"]
        run = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, check=True)
        seconds.append(time.perf_counter() - started)
        assert b"check" in run.stdout
    assert min(seconds) < 0.3
