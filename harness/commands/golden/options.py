"""Options of the commands of `golden`. The string below a field is its help text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from harness.commands.options import Known, Output, Pool, Pools, Reference, Report
from harness.commands.values import (
    WORD,
    Candidates,
    Compared,
    Default,
    Dtypes,
    Folder,
    Numbers,
    Ranks,
    Texts,
)

Text = Annotated[str, Parameter(metavar="TEXT")]


@dataclass(frozen=True, kw_only=True)
class Stored(Output):
    """Where the goldens are stored."""

    store: Folder = Path("golden")
    """the folder of the goldens"""


@dataclass(frozen=True, kw_only=True)
class OwnStep(Stored, Reference, Pool):
    """Whose own step may run, for goldens that hold what it computes."""

    candidate: Candidates = ()
    """one whose own step goldens are of, and whose code may run"""


@dataclass(frozen=True, kw_only=True)
class Replaced(Stored):
    """Whether stored numbers may be replaced, and why."""

    accept: bool = False
    """store bits that changed"""
    reason: Text = ""
    """with --accept: why the stored numbers may change by more than drift"""


@dataclass(frozen=True, kw_only=True)
class Generate(Replaced, OwnStep):
    """The options of `golden generate`."""

    candidate: Candidates = ()
    """with --out, whose numbers to store; default: native-gather. Without it, a candidate whose
    own step goldens are of, and whose code may run"""
    ranks: Ranks = Default(4)
    """ranks in the pool"""
    out: Folder | None = None
    """instead, store in a new folder what a candidate computes on this device"""
    dtype: Annotated[Literal["fp32", "bf16", "fp16"], WORD] = "bf16"
    """with --out"""


@dataclass(frozen=True, kw_only=True)
class Verify(Report, Pools, Known, OwnStep):
    """The options of `golden verify`."""

    candidate: Candidates = ()
    """you may repeat it; default: native-gather and native-local"""
    ranks: Ranks = Default(4)
    """ranks in the pool"""
    sp: Numbers | None = None
    """default: 1,2,4, as far as --ranks allows"""
    dtype: Dtypes | None = None
    """what candidates compute in; default: fp64"""
    against: Compared | None = None
    """plain: compare with plain training of the harness's model; self: with the candidate's own
    step at sp 1, whatever its model is; FILE:RECIPE: with plain training of that recipe; default:
    plain, or that of the golden"""


@dataclass(frozen=True, kw_only=True)
class Add(Replaced, Reference, Pool):
    """The options of `golden add`."""

    comment: Text
    """what is special about this case"""
    hunts: Texts = ()
    """mutants that differ from plain training on it"""
    source: Text = ""
    """where somebody met it"""
    accept: bool = False
    """replace the golden of this name"""
    candidate: Annotated[str | None, Parameter(metavar="C")] = None
    """with --against self: whose step at sp 1 to ask; with a recipe: whom the golden is for"""
