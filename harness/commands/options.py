"""What options several commands share, and what is done with some. Nothing heavy is imported."""

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
    Dtypes,
    Folder,
    Numbers,
    Ranks,
    Seed,
    Stated,
    UsageError,
    Usual,
)

PASSED, DIVERGED, USAGE, FAULT = 0, 1, 2, 3
# As a shell has it of who was ended by Ctrl-C.
STOPPED = 130

Some = TypeVar("Some", bound="Output")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Output:
    """What every command has that answers a program."""

    json: bool = False
    """print one JSON document"""


@dataclass(frozen=True, kw_only=True)
class Report(Output):
    """What a command has that finds something."""

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
    """The ranks of a pool."""

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
    """What a step is compared with."""

    against: Compared | None = PLAIN
    """plain: compare with plain training of the harness's model; self: with the candidate's own
    step at sp 1, whatever its model is"""


@dataclass(frozen=True, kw_only=True)
class Campaign(Reference, Pool):
    """What is drawn."""

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
    """What else is drawn of a case, or stated."""

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
    """What becomes of a bug that is known."""

    known: Annotated[Literal["pass", "fail"], WORD] = "fail"
    """what a bug comes to that is listed of a published package"""


@dataclass(frozen=True, kw_only=True)
class Judged(Known, Device):
    """How a failure is told."""

    diagnose: Annotated[bool, Parameter(negative="--no-diagnose")] = True
    """name a failure by experiments on other small cases, up to 200"""


def fit_to_launcher(options: Some, ranks: int | None) -> Some:
    """Where a launcher has started ranks, take these, in one pool; who asks for others is told."""
    if ranks is None:
        return options
    asked = options.ranks if isinstance(options, Pool) else None
    if asked not in (None, ranks) and not isinstance(asked, Usual):
        raise UsageError(f"--ranks={asked}: a launcher started {ranks}; leave it out")
    if isinstance(options, Pools) and (options.pools, options.on) != ("1", "here"):
        raise UsageError("--pools, --on: a launcher started the ranks of one pool; leave them out")
    return replace(options, ranks=ranks) if isinstance(options, Pool) else options


def ready_to_report(options: Report) -> None:
    """Refuse, before any rank starts, a folder that no page can be written into."""
    if options.report is not None:
        from harness.report.html import may_write

        may_write(options.report)


def answer(
    options: Report,
    document: dict[str, Any],
    status: int,
    drawn: dict[str, Any] | None = None,
) -> int:
    """What a program is told, and the same as pages, or more of it, where they are asked for.

    Returns the exit status: pages that cannot be written change no verdict, and yet somebody who
    asked for them is not told that all went well.
    """
    if options.json:
        print_json(document)
    if options.report is not None:
        from harness.report.html import pages_of, save

        as_read = json.loads(json.dumps(drawn or document))
        try:
            first, *_ = save(options.report, pages_of("this one", as_read))
        except OSError as error:
            said = f"--report={options.report}: cannot be written: {error.strerror}"
            if status == PASSED:
                said += f"; everything passed, and the exit status is {FAULT} for want of its page"
            print(f"harness: {said}", file=sys.stderr)  # noqa: T201 - no part of the answer
            return status or FAULT
        print(f"page: {first}", file=sys.stderr)  # noqa: T201 - no part of the answer
    return status


def status_of(verdict: str, known: str = "fail") -> int:
    """The exit status that a verdict stands for."""
    listed = PASSED if known == "pass" else DIVERGED
    return {"EQUAL": PASSED, "WITHIN": PASSED, "DIVERGED": DIVERGED, "KNOWN": listed}.get(
        verdict, FAULT
    )


def print_json(document: dict[str, Any]) -> None:
    """Print a program's answer."""
    print(json.dumps(document, indent=1))  # noqa: T201 - the answer
