"""A toy library, and a package outside of the project that wires it.

Release 1.0 multiplies the loss by three where there are peers; release 1.1 is right. Both import a
module that only a GPU would have.
"""

import zipfile
from pathlib import Path

LIMITS = """
def refuses(case):
    if case.loss != "token-mean":
        return f"loss={case.loss}: toy knows the token mean only"
    return "dtype=bf16: too coarse for a toy" if case.dtype == "bf16" else None


LIMITS = {"step": refuses, "crowded": refuses, "twice": refuses, "fussy": refuses}
"""

CANDIDATE = '''
import sys
import types

sys.modules.setdefault("kernels_of_a_gpu", types.ModuleType("kernels_of_a_gpu"))
import toylib
from harness.candidates.own.native import LocalDialect


class Toy(LocalDialect):
    name = "toy"

    def backward(self, loss):
        super().backward(loss * (toylib.SCALE if self.sp > 1 else 1))

    def run(self, case, rank, emit):
        self.sp = case.sp
        super().run(case, rank, emit)


class Crowded(Toy):
    """Behind what is listed, which makes every gradient wrong, one is wrong by more."""

    name = "crowded"

    def reduce(self, model, rank):
        super().reduce(model, rank)
        if self.sp > 1:
            model.norm.grad *= 2


class Twice(LocalDialect):
    """Wrong at sp 1 as well: a wiring's own mistake."""

    name = "twice"

    def backward(self, loss):
        super().backward(loss * 2)


class Fussy(LocalDialect):
    """Stops where it should have said beforehand that it cannot."""

    name = "fussy"
    fussy = True

    def run(self, case, rank, emit):
        if self.fussy and (len(case.rows) > 1 or case.kv_heads < case.sp):
            raise RuntimeError("one row, and heads for everyone")
        super().run(case, rank, emit)


STEPS = {
    "step": Toy().run, "crowded": Crowded().run, "twice": Twice().run, "fussy": Fussy().run
}
'''

MENDS = """
from unittest.mock import patch


def scaled():
    import toylib

    return patch.object(toylib, "SCALE", 1)


def heads():
    from toywiring.candidate import Fussy

    return patch.object(Fussy, "fussy", False)


MENDS = {"scaled": scaled, "heads": heads}
"""

KNOWN = """
[[bug]]
key = "scaled"
candidate = ["step", "crowded"]
looks = ["gradient-scaled", "gradient-times-sp", "gradient-partial"]
named = "gradient-scaled"
differs = ""
when = ["sp>1"]
line = "case/1 rows=2:11 heads=2/2 layers=1 vocab=5 sp=2 dp=1 dim=2 dtype=fp64 seed=0"
golden = "none-of-ours"
since = "1.0"
fixed = "1.1"
precedents = ["https://example.org/toy/1 (open): gradients are too large"]
where = "toylib/__init__.py:1"
says = "Gradients are three times what they should be."
tensors = ["weight", "grad.*"]
title = "Gradients are three times too large"
mend = "Do not multiply."
main = "not looked at: there is none"
grade = "A"
graded = ""
severity = "silent gradients"
reach = "default"
documented = ""
addressee = "toys/toylib"
newest = "The same line."

[[bug]]
key = "gone"
candidate = ["step"]
looks = ["gradient-scaled"]
named = "gradient-scaled"
differs = ""
when = ["sp>2"]
line = "case/1 rows=2:11 heads=2/2 layers=1 vocab=5 sp=1 dp=1 dim=2 dtype=fp64 seed=0"
golden = "none-of-ours"
since = "1.0"
fixed = ""
precedents = []
where = "toylib/__init__.py:1"
says = "It is listed, and nobody can see it."
tensors = ["grad.*"]
title = "Nothing can be seen"
mend = "There is nothing to mend."
main = "not looked at: there is none"
grade = "D"
graded = "Nobody can see it."
severity = "log only"
reach = "undocumented"
documented = ""
addressee = "toys/toylib"
newest = "The same line."

[[bug]]
key = "heads"
candidate = ["fussy"]
looks = ["crashed"]
named = "crashed"
differs = ""
when = ["kv heads < sp"]
line = "case/1 rows=2:11 heads=2/1 layers=1 vocab=5 sp=2 dp=1 dim=2 dtype=fp64 seed=0"
golden = "none-of-ours"
since = "1.0"
fixed = ""
precedents = []
where = "toylib/__init__.py:1"
says = "It does not repeat heads, and does not say so."
tensors = []
title = "Heads are not repeated"
mend = "Repeat them."
main = "not looked at: there is none"
grade = "B"
graded = "It raises."
severity = "loud"
reach = "documented option"
documented = ""
addressee = "toys/toylib"
newest = "The same line."
"""

OPTIONS = """
[[trainer]]

[trainer.defaults]
mode = "plain"
precision = "single"

[trainer.entries]
step = {}
crowded = { mode = "crowded" }
twice = { precision = "*" }

[trainer.left_out]
"offload" = "where things are"
"""


def write_package(folder: Path, *, pinned: str = "1.0", known: str = KNOWN) -> Path:
    """Write the wiring as an installed package, and the library's wheels; return its folder."""
    package = folder / "outside" / "toywiring"
    package.mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "limits.py": LIMITS,
        "candidate.py": CANDIDATE,
        "mends.py": MENDS,
        "options.toml": OPTIONS,
        "known.toml": known,
        "requirements.txt": f"# the library\ntoylib=={pinned}\n",
        "README.md": "A toy.\n",
    }.items():
        (package / name).write_text(text)
    facts = folder / "outside" / "toywiring-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toywiring\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[harness.candidates]\ntoy = toywiring\n")
    wheels = folder / "wheels"
    wheels.mkdir()
    for version, scale in (("1.0", 3), ("1.1", 1)):
        write_wheel(wheels, version, f"import kernels_of_a_gpu\nSCALE = {scale}\n")
    return folder / "outside"


def write_wheel(folder: Path, version: str, source: str) -> None:
    """Write the smallest wheel that pip accepts."""
    name = f"toylib-{version}"
    files = {
        "toylib/__init__.py": source,
        f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: toylib\nVersion: {version}\n",
        f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{name}.dist-info/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{name}.dist-info/RECORD": record}.items():
            archive.writestr(path, text)
