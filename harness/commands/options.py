"""Options that several commands share, and how a command answers: documents, pages, status.

The string below a field is its help text.
"""

import json
import sys
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, get_args

from cyclopts import Parameter

from harness.against import PLAIN
from harness.case import Kernel, LossContract, Wrapper
from harness.commands.values import (
    LIST,
    WORD,
    Compared,
    Count,
    Deadline,
    Default,
    Dtypes,
    Folder,
    Numbers,
    Ranks,
    Seed,
    Stated,
    UsageError,
)

# Exit statuses.
PASSED, DIVERGED, USAGE, FAULT = 0, 1, 2, 3
# The status that a shell gives to a command that Ctrl-C ended.
STOPPED = 130

Options = TypeVar("Options", bound="Output")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Output:
    """Options of every command that can print a document for programs."""

    json: bool = False
    """print one JSON document"""


@dataclass(frozen=True, kw_only=True)
class Report(Output):
    """Options of every command whose results can be shown as pages."""

    report: Folder | None = None
    """write what was found as HTML pages into this folder as well"""


@dataclass(frozen=True, kw_only=True)
class Device(Output):
    """Where ranks run, and how long a case may take."""

    device: Annotated[Literal["auto", "cpu", "cuda", "npu", "xpu", "pretend"], WORD] = "auto"
    """pretend: show the ranks a GPU whose work the CPU does; this finds tensors on the wrong
    device, and nothing else of CUDA"""
    transport: Annotated[Literal["auto", "gloo", "nccl"], WORD] = "auto"
    """auto: the device's own, such as nccl, if no two ranks share a device; else gloo"""
    deadline: Deadline = 20.0
    """time limit of one case"""


@dataclass(frozen=True, kw_only=True)
class Pool(Device):
    """How many ranks a pool has."""

    ranks: Ranks | None = None
    """ranks in the pool; if not given, as many as the cases need"""


@dataclass(frozen=True, kw_only=True)
class Pools(Device):
    """How many pools there are, and where."""

    pools: Annotated[str, Parameter(metavar="N")] = "1"
    """judge on N pools of ranks at once; auto: as many as there are cores, or devices, for"""
    on: Annotated[Literal["here", "ray"], WORD] = "here"
    """ray: have the pools on the hosts of the Ray cluster that RAY_ADDRESS names, or the one of
    this host; --pools auto: as many as there is room for"""


@dataclass(frozen=True, kw_only=True)
class Reference(Output):
    """The reference that a step is compared with."""

    against: Compared | None = PLAIN
    """plain: compare with plain training of the harness's model; self: with the candidate's own
    step at sp 1, whatever its model is; FILE:RECIPE: with plain training of that recipe"""


@dataclass(frozen=True, kw_only=True)
class Campaign(Reference, Pool):
    """Which cases are drawn."""

    cases: Count = 100
    """how many cases"""
    seed: Seed | None = 0
    """of the campaign"""
    sp: Numbers | None = None
    """ranks that share a sequence; default: 1,2,4, as far as --ranks allows, and a few cases with
    others"""
    dp: Numbers | None = None
    """replicas; default: 1,2, as far as --ranks allows, and a few cases with 4"""
    dtype: Dtypes = ("fp64", "fp32")
    """what a step computes in"""
    loss: Annotated[tuple[LossContract, ...], LIST] = get_args(LossContract)
    """what the loss averages over"""


@dataclass(frozen=True, kw_only=True)
class Step(Output):
    """Further fields of a case, which are drawn or stated."""

    kernel: Annotated[tuple[Kernel, ...], LIST] = ("eager", "sdpa")
    """attention kernels"""
    wrapper: Annotated[tuple[Wrapper, ...], LIST] = ("none",)
    """who sums gradients over ranks: none (the step itself), ddp, fsdp; with ddp and fsdp, `sync`
    is drawn too, and `mixed` in half precision"""
    set: Stated = ()
    """any other field of a case, instead of what is drawn: window=none, layers=1,2,
    model=qwen2,qwen3, steps=1; you may repeat it"""


@dataclass(frozen=True, kw_only=True)
class Known(Output):
    """How a known bug is counted."""

    known: Annotated[Literal["pass", "fail"], WORD] = "fail"
    """what a bug comes to that is listed of a published package"""


@dataclass(frozen=True, kw_only=True)
class Judging(Known, Device):
    """How cases are judged, and how a failure is explained."""

    diagnose: Annotated[bool, Parameter(negative="--no-diagnose")] = True
    """name a failure by experiments on other small cases, up to 200"""


def fit_to_launcher(options: Options, ranks: int | None) -> Options:
    """Set the number of ranks to that of the launcher, if there is one.

    Raise `UsageError` if the options ask for other ranks, or for more than one pool.
    """
    if ranks is None:
        return options
    asked = options.ranks if isinstance(options, Pool) else None
    if asked not in (None, ranks) and not isinstance(asked, Default):
        raise UsageError(f"--ranks={asked}: a launcher started {ranks}; leave it out")
    if isinstance(options, Pools) and (options.pools, options.on) != ("1", "here"):
        raise UsageError("--pools, --on: a launcher started the ranks of one pool; leave them out")
    return replace(options, ranks=ranks) if isinstance(options, Pool) else options


def require_writable_report(options: Report) -> None:
    """Raise `BadInput`, before any rank starts, if pages cannot be written into their folder."""
    if options.report is not None:
        from harness.report.html import require_writable_folder

        require_writable_folder(options.report)


def answer(
    options: Report,
    document: dict[str, Any],
    status: int,
    drawn: dict[str, Any] | None = None,
) -> int:
    """Print the document with --json, write pages with --report, and return the exit status.

    The pages show `drawn` if it is given, else the document. If they cannot be written, the status
    of a failure stays, and that of a pass becomes FAULT.
    """
    if options.json:
        print_json(document)
    if options.report is not None:
        from harness.report.html import pages_of, save

        as_read = json.loads(json.dumps(drawn or document))
        try:
            first, *_ = save(options.report, pages_of("this one", as_read))
        except OSError as error:
            why = f"--report={options.report}: cannot be written: {error.strerror}"
            if status == PASSED:
                why += f"; everything passed, and the exit status is {FAULT} for want of its page"
            print_message(why)
            return status or FAULT
        print(f"page: {first}", file=sys.stderr)  # noqa: T201 - it is no part of the document
    return status


def status_of(verdict: str, known: str = "fail") -> int:
    """Return the exit status of a verdict; `known` is what a known bug counts as."""
    of_known = PASSED if known == "pass" else DIVERGED
    return {"EQUAL": PASSED, "WITHIN": PASSED, "DIVERGED": DIVERGED, "KNOWN": of_known}.get(
        verdict, FAULT
    )


def print_json(document: dict[str, Any]) -> None:
    """Print a document for programs."""
    print(json.dumps(document, indent=1))  # noqa: T201 - the output of the command


def print_message(message: str) -> None:
    """Print a line for people, on stderr, which keeps it out of the output of the command."""
    print(f"harness: {message}", file=sys.stderr)  # noqa: T201 - the one place that prints these
