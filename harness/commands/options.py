"""What options several commands share, and what their words mean. Nothing heavy is imported."""

import argparse
import json
import math
import re
import sys
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from harness.against import ITSELF, PLAIN, Against
from harness.campaign.lot import Part
from harness.campaign.request import NAMED, Request
from harness.case import Dtype, Kernel, LossContract, Wrapper
from harness.outside import BadInput

PASSED, DIVERGED, USAGE, FAULT = 0, 1, 2, 3
# As a shell has it of who was ended by Ctrl-C.
STOPPED = 130
# Sizes that are drawn where nobody asked for others; and, seldom, beyond them.
USUAL_SPS, USUAL_DPS = (1, 2, 4), (1, 2)
RARE_SPS, RARE_DPS = (3, 5, 8), (4,)
# What is drawn of other fields if the command line does not name it.
USUAL = {
    "dp": None,
    "dtype": "fp64,fp32",
    "loss": ",".join(get_args(LossContract)),
    "kernel": "eager,sdpa",
    "wrapper": "none",
}

ONLY_SP_1 = "--sp=1: is what --against self compares with; ask for a larger one"

_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


class Usual(int):
    """A number that nobody asked for."""


class UsageError(BadInput):
    """Something on the command line that cannot be; the message names field and value."""


def campaign_options(parser: argparse.ArgumentParser, *, cases: int, seed: int | None = 0) -> None:
    drawn = (
        "of the campaign; default: 0"
        if seed == 0
        else "run the cases of `check --seed S` to the first failure"
    )
    parser.add_argument(
        "--cases", type=int, default=cases, metavar="N", help=f"how many cases; default: {cases}"
    )
    parser.add_argument("--seed", type=int, default=seed, metavar="S", help=drawn)
    parser.add_argument(
        "--sp",
        metavar="LIST",
        help="ranks that share a sequence; default: 1,2,4, as far as --ranks allows, and a few "
        "cases with others",
    )
    parser.add_argument(
        "--dp",
        metavar="LIST",
        help="replicas; default: 1,2, as far as --ranks allows, and a few cases with 4",
    )
    parser.add_argument(
        "--dtype",
        default=USUAL["dtype"],
        metavar="LIST",
        help="fp64, fp32, bf16, fp16; default: fp64,fp32",
    )
    parser.add_argument(
        "--loss",
        default=USUAL["loss"],
        metavar="LIST",
        help="what the loss averages over; default: token-mean,micro-mean,row-mean",
    )


def step_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernel",
        default=USUAL["kernel"],
        metavar="LIST",
        help="attention kernels: eager, sdpa, varlen, flash; default: eager,sdpa",
    )
    parser.add_argument(
        "--wrapper",
        default=USUAL["wrapper"],
        metavar="LIST",
        help="who sums gradients over ranks: none (the step itself), ddp, fsdp; with ddp and "
        "fsdp, `sync` is drawn too, and `mixed` in half precision; default: none",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=LIST",
        help="any other field of a case, instead of what is drawn: window=none, layers=1,2, "
        "model=qwen2,qwen3, steps=1; you may repeat it",
    )


def against_option(
    parser: argparse.ArgumentParser, default: str | None, otherwise: str = ""
) -> None:
    parser.add_argument(
        "--against",
        choices=get_args(Against),
        default=default,
        help="plain: compare with plain training of the harness's model; self: with the "
        "candidate's own step at sp 1, whatever its model is; default: plain"
        + (f", or that of the {otherwise}" if otherwise else ""),
    )


def known_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--known",
        choices=("pass", "fail"),
        default="fail",
        help="what a bug comes to that is listed of a published package; default: fail",
    )


def diagnose_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--diagnose",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="name a failure by experiments on other small cases, up to 200; default: do",
    )


def pool_options(
    parser: argparse.ArgumentParser, *, ranks: int | None = None, deadline: float = 20.0
) -> None:
    parser.add_argument(
        "--ranks",
        type=int,
        default=None if ranks is None else Usual(ranks),
        metavar="N",
        help=f"ranks in the pool; default: {ranks or 'as many as the cases need'}",
    )
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cpu", "cuda", "npu", "xpu", "pretend"),
        help="pretend: show the ranks a GPU whose work the CPU does; this finds tensors on the "
        "wrong device, and nothing else of CUDA",
    )
    parser.add_argument(
        "--transport",
        default="auto",
        choices=("auto", "gloo", "nccl"),
        help="auto: the device's own, such as nccl, if no two ranks share a device; else gloo",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=deadline,
        metavar="SECONDS",
        help=f"time limit of one case; default: {deadline:g}",
    )
    json_option(parser)


def fit_to_launcher(options: argparse.Namespace, ranks: int | None) -> None:
    """Where a launcher has started ranks, take these, in one pool; who asks for others is told."""
    if ranks is None:
        return
    asked = getattr(options, "ranks", None)
    if asked not in (None, ranks) and not isinstance(asked, Usual):
        raise UsageError(f"--ranks={asked}: a launcher started {ranks}; leave it out")
    if str(getattr(options, "pools", "1")) != "1" or getattr(options, "on", "here") != "here":
        raise UsageError("--pools, --on: a launcher started the ranks of one pool; leave them out")
    if hasattr(options, "ranks"):
        options.ranks = ranks


def json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def report_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report",
        metavar="DIR",
        help="write what was found as HTML pages into this folder as well",
    )


def ready_to_report(options: argparse.Namespace) -> None:
    """Refuse, before any rank starts, a folder that no page can be written into."""
    if options.report is not None:
        from harness.report.html import may_write

        may_write(Path(options.report))


def answer(
    options: argparse.Namespace,
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
            first, *_ = save(Path(options.report), pages_of("this one", as_read))
        except OSError as error:
            said = f"--report={options.report}: cannot be written: {error.strerror}"
            if status == PASSED:
                said += f"; everything passed, and the exit status is {FAULT} for want of its page"
            print(f"harness: {said}", file=sys.stderr)  # noqa: T201 - no part of the answer
            return status or FAULT
        print(f"page: {first}", file=sys.stderr)  # noqa: T201 - no part of the answer
    return status


def read_request(options: argparse.Namespace) -> tuple[Request, int]:
    """What `check` or `mutants` was asked to examine, and on how many ranks."""
    sps, dps = _meshes(options)
    for option, numbers in (("--sp", sps), ("--dp", dps)):
        if max(numbers) > 1024:
            raise UsageError(f"{option}={max(numbers)}: use numbers of at most 1024")
    if options.cases < 1:
        raise UsageError(f"--cases={options.cases}: at least one case must be examined")
    if not 0 <= options.seed < 1 << 63:
        raise UsageError(f"--seed={options.seed}: use a whole number from 0 to {(1 << 63) - 1}")
    dtypes = read_dtypes(options.dtype)
    losses = _words("--loss", options.loss, get_args(LossContract))
    wrappers = _words("--wrapper", options.wrapper, get_args(Wrapper))
    kernels = _words("--kernel", options.kernel, get_args(Kernel))
    ranks = _ranks_for(options, sps, dps)
    stated = [read_set(text)[0] for text in options.set]
    named = [name for name in NAMED if getattr(options, name) != USUAL[name]]
    request = Request(
        candidates=tuple(dict.fromkeys(options.candidate or ("native-gather", "native-local"))),
        sps=sps,
        dps=dps,
        dtypes=dtypes,
        losses=losses,
        count=options.cases,
        seed=options.seed,
        kernels=kernels,
        wrappers=wrappers,
        stated=tuple(options.set),
        against=against_of(options),
        named=tuple(dict.fromkeys((*named, *stated))),
        rare_sps=() if options.sp else RARE_SPS,
        rare_dps=() if options.dp else RARE_DPS,
    )
    return request, ranks


def read_set(text: str) -> tuple[str, tuple[Any, ...]]:
    """What `--set` states of a field."""
    from harness.case.stated import BadField, read_stated

    try:
        return read_stated(text)
    except BadField as error:
        raise UsageError(f"--set={error}") from None


def _meshes(options: argparse.Namespace) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes asked for; if nobody asked, the usual ones for which there are ranks."""
    dps = read_numbers("--dp", options.dp) if options.dp else USUAL_DPS
    sps = read_sps(options, min(dps))
    if against_of(options) == ITSELF:
        sps = tuple(sp for sp in sps if sp > 1)
        if not sps:
            raise UsageError(ONLY_SP_1)
    if not options.dp and options.ranks is not None:
        dps = tuple(dp for dp in dps if dp * min(sps) <= options.ranks) or dps[:1]
    return sps, dps


def read_sps(options: argparse.Namespace, dp: int = 1) -> tuple[int, ...]:
    """What `--sp` names; if nobody asked, the usual ones for which there are ranks."""
    if options.sp:
        return read_numbers("--sp", options.sp)
    ranks = math.inf if options.ranks is None else options.ranks
    sps = tuple(sp for sp in USUAL_SPS if sp * dp <= ranks)
    if max(sps, default=1) == 1:
        raise UsageError(
            f"--ranks={options.ranks}: no sequence can be shared; use at least {2 * dp} ranks, or "
            "ask for --sp 1"
        )
    return sps


def _ranks_for(options: argparse.Namespace, sps: tuple[int, ...], dps: tuple[int, ...]) -> int:
    """As many as there are to be, or as the sizes need; each size has a mesh that fits."""
    ranks: int = max(sps) * max(dps) if options.ranks is None else options.ranks
    for option, numbers, least in (("--sp", sps, min(dps)), ("--dp", dps, min(sps))):
        if max(numbers) * least > ranks:
            raise UsageError(
                f"--ranks={ranks}: {option}={max(numbers)} needs {max(numbers) * least} ranks; "
                f"ask for more ranks, or for a smaller {option}"
            )
    return ranks


def against_of(options: argparse.Namespace) -> Against:
    """What candidates are compared with; where nobody can say, with plain training."""
    return ITSELF if getattr(options, "against", None) == ITSELF else PLAIN


def read_keys(text: str, known: Mapping[str, Collection[str]]) -> list[str]:
    """The keys that `mutants --only` names, in the order of the bank; a group names all of its."""
    chosen: set[str] = set()
    every = set().union(*known.values())
    for word in text.split(","):
        if word not in known and word not in every:
            near = ", ".join(get_close_matches(word, [*known, *every], 3, 0.0))
            raise UsageError(f"--only={word}: there is no such mutant or variant; near: {near}")
        chosen.update(known.get(word, {word}))
    return [
        key
        for key in dict.fromkeys(key for keys in known.values() for key in keys)
        if key in chosen
    ]


def read_part(text: str, cases: int) -> Part:
    """The part of a campaign of so many cases that `check` was asked for."""
    written = _SHARD.fullmatch(text)
    if not written or int(written[2]) == 0:
        raise UsageError(f"--shard={text}: use K/N, for example 3/16")
    number, of = map(int, written.groups())
    if not 1 <= number <= of:
        raise UsageError(f"--shard={text}: use numbers from 1/{of} to {of}/{of}")
    if of > cases:
        raise UsageError(f"--shard={text}: --cases={cases} are too few for {of} shards")
    return Part(number, of)


def read_numbers(option: str, text: str) -> tuple[int, ...]:
    """What stands in a list of numbers."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option}={text}: use whole numbers separated by commas") from None
    if min(numbers) < 1:
        raise UsageError(f"{option}={text}: use numbers of at least 1")
    return numbers


def read_dtypes(text: str) -> tuple[Dtype, ...]:
    """What `--dtype` names."""
    return _words("--dtype", text, get_args(Dtype))


def _words(option: str, text: str, known: tuple[Any, ...]) -> tuple[Any, ...]:
    for word in text.split(","):
        if word not in known:
            raise UsageError(f"{option}={word}: use one of {', '.join(known)}")
    return tuple(text.split(","))


def status_of(verdict: str, known: str = "fail") -> int:
    """The exit status that a verdict stands for."""
    listed = PASSED if known == "pass" else DIVERGED
    return {"EQUAL": PASSED, "WITHIN": PASSED, "DIVERGED": DIVERGED, "KNOWN": listed}.get(
        verdict, FAULT
    )


def print_json(document: dict[str, Any]) -> None:
    """Print a program's answer."""
    print(json.dumps(document, indent=1))  # noqa: T201 - the answer
