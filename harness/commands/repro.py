"""`repro`: run one case, fully traced, and explain."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from harness.case import Case, InvalidCase, parse
from harness.commands.options import UsageError, open_pool, pool_options, print_json, status_of

HELP = "run one case, fully traced, and explain"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "cases",
        nargs="+",
        metavar="CASE-LINE|BUNDLE",
        help="a failure's folder; or a case, after those that the same ranks must have run before",
    )
    parser.add_argument("--candidate", metavar="C", help="default: the bundle's, or native-gather")
    pool_options(parser)


def run(options: argparse.Namespace) -> int:
    cases, candidate = _cases_and_candidate(options.cases, options.candidate)
    needed, mesh = max((case.ranks, f"sp*dp={case.sp}*{case.dp}") for case in cases)
    ranks = needed if options.ranks is None else options.ranks
    if ranks < needed:
        raise UsageError(f"--ranks={ranks}: {mesh} needs {needed} ranks")

    from harness.candidates import load
    from harness.fresh import run_before
    from harness.report import comparison_record, explain
    from harness.run import evaluate_traced

    load(candidate)
    *before, case = cases
    with open_pool(options, ranks) as pool:
        run_before(before, candidate, pool)
        comparison = replace(evaluate_traced(case, candidate, pool), before=tuple(before))
    if options.json:
        print_json(comparison_record(comparison))
    else:
        print(explain(comparison))  # noqa: T201 - the answer
    return status_of(comparison.verdict.name)


def _cases_and_candidate(texts: list[str], candidate: str | None) -> tuple[list[Case], str]:
    if len(texts) > 1 or texts[0].startswith("case/"):
        return [parse(text) for text in texts], candidate or "native-gather"
    (text,) = texts
    # A path may hold such a sign, and a line a slip of the pen: what is there on disk is a path.
    if "=" in text and not os.path.lexists(text):
        raise InvalidCase.because("case", text, "a case line starts with case/1")

    from harness.report.bundle import read_bundle

    bundle = read_bundle(Path(text))
    return [*bundle.before, bundle.case], candidate or bundle.candidate
