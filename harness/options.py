"""What may stand on the command line, and what its words mean. Nothing heavy is imported."""

import argparse
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, get_args

import harness
from harness.campaign import Request, Shard
from harness.case import Dtype, LossContract

Command = Callable[[argparse.Namespace], int]

_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


class UsageError(ValueError):
    """Something on the command line that cannot be; the message names field and value."""


def build_parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser; what it returns has the command to `run`."""
    parser = argparse.ArgumentParser(prog="harness", description=harness.__doc__)
    parser.add_argument("--version", action="version", version=harness.__version__)
    known = parser.add_subparsers(required=True, metavar="COMMAND")

    check = known.add_parser("check", help="judge candidates on generated cases")
    check.add_argument(
        "--candidate",
        action="append",
        metavar="C",
        help="a built-in name, path/to/file.py:NAME or package.module:NAME; may be repeated; "
        "default: native-gather and native-local",
    )
    check.add_argument(
        "--shard",
        default="1/1",
        metavar="K/N",
        help="examine only the K-th of N disjoint parts; `merge` puts them together",
    )
    _campaign_options(check, cases=100)
    _pool_options(check)

    merge = known.add_parser("merge", help="put the shards of one campaign together")
    merge.add_argument(
        "documents", nargs="+", metavar="DOCUMENT", help="what check --json printed"
    )
    _json_option(merge)

    repro = known.add_parser("repro", help="run one case, fully traced, and explain")
    repro.add_argument(
        "cases",
        nargs="+",
        metavar="CASE-LINE|BUNDLE",
        help="a failure's folder; or a case, after those that the same ranks must have run before",
    )
    repro.add_argument("--candidate", metavar="C", help="default: the bundle's, or native-gather")
    _pool_options(repro)

    mutants = known.add_parser("mutants", help="how many known bugs the check finds, and names")
    mutants.add_argument(
        "--only",
        default="mutants,benign",
        metavar="LIST",
        help="keys such as B14, stages such as labels, mutants or benign; default: both",
    )
    mutants.add_argument(
        "--pools", type=int, default=1, metavar="N", help="side by side, default: 1"
    )
    mutants.add_argument("--shrink", action="store_true", help="shrink each failure, up to 60 s")
    mutants.add_argument(
        "--rivals", action="store_true", help="score the rules of published suites as well"
    )
    _campaign_options(mutants, cases=200)
    # As many ranks as tests have; and some mutants hang, which is soon seen.
    _pool_options(mutants, ranks=4, deadline=10.0)

    doctor = known.add_parser("doctor", help="what will run here, what will not, and why")
    _json_option(doctor)

    mutants.set_defaults(candidate=None)
    for name, command in known.choices.items():
        command.set_defaults(run=commands[name])
    return parser


def _campaign_options(parser: argparse.ArgumentParser, *, cases: int) -> None:
    parser.add_argument("--cases", type=int, default=cases, metavar="N", help=f"default: {cases}")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument("--sp", default="1,2,4", metavar="LIST", help="default: 1,2,4")
    parser.add_argument("--dp", default="1,2", metavar="LIST", help="default: 1,2")
    parser.add_argument("--dtype", default="fp64,fp32", metavar="LIST", help="default: fp64,fp32")
    parser.add_argument(
        "--loss",
        default=",".join(get_args(LossContract)),
        metavar="LIST",
        help="what the loss averages, default: token-mean,micro-mean,row-mean",
    )


def _pool_options(
    parser: argparse.ArgumentParser, *, ranks: int | None = None, deadline: float = 20.0
) -> None:
    parser.add_argument(
        "--ranks",
        type=int,
        default=ranks,
        metavar="N",
        help=f"default: {ranks or 'as many as are needed'}",
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument(
        "--deadline",
        type=float,
        default=deadline,
        metavar="SECONDS",
        help=f"per case, default: {deadline:g}",
    )
    _json_option(parser)


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def read_request(options: argparse.Namespace) -> tuple[Request, int]:
    """What `check` or `mutants` was asked to examine, and on how many ranks."""
    sps, dps = _numbers("--sp", options.sp), _numbers("--dp", options.dp)
    for option, numbers in (("--sp", sps), ("--dp", dps)):
        if max(numbers) > 1024:
            raise UsageError(f"{option}={max(numbers)}: use numbers of at most 1024")
    if options.cases < 1:
        raise UsageError(f"--cases={options.cases}: at least one case must be examined")
    if not 0 <= options.seed < 1 << 63:
        raise UsageError(f"--seed={options.seed}: use a whole number from 0 to {(1 << 63) - 1}")
    dtypes = _words("--dtype", options.dtype, get_args(Dtype))
    losses = _words("--loss", options.loss, get_args(LossContract))
    ranks = max(sps) * max(dps) if options.ranks is None else options.ranks
    if ranks < min(sps) * min(dps):
        raise UsageError(
            f"--ranks={ranks}: sp*dp={min(sps)}*{min(dps)} is the smallest mesh asked for"
        )
    request = Request(
        candidates=tuple(dict.fromkeys(options.candidate or ("native-gather", "native-local"))),
        sps=sps,
        dps=dps,
        dtypes=dtypes,
        losses=losses,
        count=options.cases,
        seed=options.seed,
    )
    return request, ranks


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


def read_shard(text: str, cases: int) -> Shard:
    """The part of a campaign of so many cases that `check` was asked for."""
    found = _SHARD.fullmatch(text)
    if not found or int(found[2]) == 0:
        raise UsageError(f"--shard={text}: use K/N, for example 3/16")
    shard = Shard(int(found[1]), int(found[2]))
    if not 1 <= shard.number <= shard.of:
        raise UsageError(f"--shard={text}: use numbers from 1/{shard.of} to {shard.of}/{shard.of}")
    if shard.of > cases:
        raise UsageError(f"--shard={text}: --cases={cases} are too few for {shard.of} shards")
    return shard


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option}={text}: use whole numbers separated by commas") from None
    if min(numbers) < 1:
        raise UsageError(f"{option}={text}: use numbers of at least 1")
    return numbers


def _words(option: str, text: str, known: tuple[Any, ...]) -> tuple[Any, ...]:
    for word in text.split(","):
        if word not in known:
            raise UsageError(f"{option}={word}: use one of {', '.join(known)}")
    return tuple(text.split(","))
