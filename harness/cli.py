"""The command line. Heavy imports wait until a command runs: `--help` needs no torch."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import harness
from harness.case import Case, Dtype, InvalidCase, LossContract, parse

if TYPE_CHECKING:
    from harness.compare import Verdict

PASSED, DIVERGED, USAGE, FAULT = 0, 1, 2, 3


class UsageError(ValueError):
    """Something on the command line that cannot be; the message names field and value."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status says how it went."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except _bad_input() as error:
        print(f"harness: {' '.join(str(error).splitlines())}", file=sys.stderr)  # noqa: T201 - a command speaks
        return USAGE
    except KeyboardInterrupt:
        print("harness: interrupted; every rank is stopped", file=sys.stderr)  # noqa: T201
        return 130
    return status


def _bad_input() -> tuple[type[Exception], ...]:
    from harness.candidates.registry import UnknownCandidate

    errors: list[type[Exception]] = [UsageError, InvalidCase, UnknownCandidate]
    for module, name in (
        ("ranks.pool", "TooFewRanks"),
        ("report.bundle", "BadBundle"),
        ("ranks.device", "NoDevice"),
    ):
        loaded = sys.modules.get(f"harness.{module}")
        if loaded:
            errors.append(getattr(loaded, name))
    return tuple(errors)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="harness", description=harness.__doc__)
    parser.add_argument("--version", action="version", version=harness.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    check = commands.add_parser("check", help="judge candidates on generated cases")
    check.add_argument(
        "--candidate",
        action="append",
        metavar="C",
        help="a built-in name, path/to/file.py:NAME or package.module:NAME; may be repeated; "
        "default: native-gather and native-local",
    )
    check.add_argument("--cases", type=int, default=100, metavar="N", help="default: 100")
    check.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    check.add_argument("--sp", default="1,2,4", metavar="LIST", help="default: 1,2,4")
    check.add_argument("--dp", default="1,2", metavar="LIST", help="default: 1,2")
    check.add_argument("--dtype", default="fp64,fp32", metavar="LIST", help="default: fp64,fp32")
    check.add_argument(
        "--loss",
        default=",".join(get_args(LossContract)),
        metavar="LIST",
        help="what the loss averages, default: token-mean,micro-mean,row-mean",
    )
    _pool_options(check)
    check.set_defaults(run=_check)

    repro = commands.add_parser("repro", help="run one case, fully traced, and explain")
    repro.add_argument("case", metavar="CASE-LINE|BUNDLE")
    repro.add_argument("--candidate", metavar="C", help="default: the bundle's, or native-gather")
    _pool_options(repro)
    repro.set_defaults(run=_repro)

    doctor = commands.add_parser("doctor", help="what will run here, what will not, and why")
    doctor.add_argument("--json", action="store_true", help="print one JSON document")
    doctor.set_defaults(run=_doctor)
    return parser


def _pool_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, metavar="N", help="default: as many as are needed")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument(
        "--deadline", type=float, default=20.0, metavar="SECONDS", help="per case, default: 20"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _check(options: argparse.Namespace) -> int:
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
    candidates = tuple(options.candidate or ("native-gather", "native-local"))

    from rich.console import Console

    from harness.candidates import load
    from harness.check import Request, check

    for candidate in candidates:
        load(candidate)
    request = Request(
        candidates=candidates,
        sps=sps,
        dps=dps,
        dtypes=dtypes,
        losses=losses,
        count=options.cases,
        seed=options.seed,
    )
    with _pool(options, ranks) as pool:
        summary = check(request, pool, Console(stderr=options.json))
    if options.json:
        _print_json(summary.record())
    return _status(summary.verdict)


def _repro(options: argparse.Namespace) -> int:
    case, candidate = _case_and_candidate(options.case, options.candidate)
    ranks = case.ranks if options.ranks is None else options.ranks
    if ranks < case.ranks:
        raise UsageError(f"--ranks={ranks}: sp*dp={case.sp}*{case.dp} needs {case.ranks} ranks")

    from harness.candidates import load
    from harness.report import comparison_record, explain
    from harness.run import evaluate_traced

    load(candidate)
    with _pool(options, ranks) as pool:
        comparison = evaluate_traced(case, candidate, pool)
    if options.json:
        _print_json(comparison_record(comparison))
    else:
        print(explain(comparison))  # noqa: T201 - the answer
    return _status(comparison.verdict)


def _doctor(options: argparse.Namespace) -> int:
    from harness.doctor import examine, show

    findings = examine()
    if options.json:
        _print_json(findings)
    else:
        show(findings)
    return PASSED


def _case_and_candidate(text: str, candidate: str | None) -> tuple[Case, str]:
    if text.startswith("case/"):
        return parse(text), candidate or "native-gather"
    # A path may hold such a sign, and a line a slip of the pen: what is there on disk is a path.
    if "=" in text and not os.path.lexists(text):
        raise InvalidCase.because("case", text, "a case line starts with case/1")

    from harness.report.bundle import read_bundle

    bundle = read_bundle(Path(text))
    return bundle.case, candidate or bundle.candidate


def _pool(options: argparse.Namespace, ranks: int) -> Any:
    from harness.ranks.device import choose
    from harness.ranks.pool import RankPool

    if not 0 < options.deadline < 1e6:
        raise UsageError(f"--deadline={options.deadline:g}: use a number of seconds above zero")
    device, transport = choose(options.device, ranks)
    return RankPool(ranks, device=device, transport=transport, deadline=options.deadline)


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


def _status(verdict: "Verdict") -> int:
    if verdict.passed:
        return PASSED
    return DIVERGED if verdict.name == "DIVERGED" else FAULT


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=1))  # noqa: T201 - the answer
