"""The command line. Heavy imports wait until a command runs: `--help` needs no torch."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.campaign import EmptyShard
from harness.case import Case, InvalidCase, parse
from harness.options import UsageError, build_parser, read_keys, read_request, read_shard

PASSED, DIVERGED, USAGE, FAULT = 0, 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status says how it went."""
    commands = {
        "check": _check,
        "merge": _merge,
        "repro": _repro,
        "mutants": _mutants,
        "doctor": _doctor,
    }
    options = build_parser(commands).parse_args(arguments)
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
    errors: list[type[Exception]] = [UsageError, InvalidCase, EmptyShard]
    for module, name in (
        ("candidates.registry", "UnknownCandidate"),
        ("ranks.pool", "TooFewRanks"),
        ("report.bundle", "BadBundle"),
        ("report.merge", "BadDocument"),
        ("ranks.device", "NoDevice"),
    ):
        loaded = sys.modules.get(f"harness.{module}")
        if loaded:
            errors.append(getattr(loaded, name))
    return tuple(errors)


def _check(options: argparse.Namespace) -> int:
    request, ranks = read_request(options)
    shard = read_shard(options.shard, request.count)

    from rich.console import Console

    from harness.candidates import load
    from harness.check import check

    for candidate in request.candidates:
        load(candidate)
    with _pool(options, ranks) as pool:
        summary = check(request, pool, Console(stderr=options.json), shard)
    if options.json:
        _print_json(summary.record())
    return _status(summary.verdict)


def _merge(options: argparse.Namespace) -> int:
    from rich.console import Console

    from harness.report.merge import merge, read_document
    from harness.report.table import show, show_failures

    summary = merge([(name, read_document(name)) for name in options.documents])
    console = Console(stderr=options.json)
    show(summary, console)
    show_failures(summary, console)
    if options.json:
        _print_json(summary.record())
    return _status(summary.verdict)


def _repro(options: argparse.Namespace) -> int:
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
    with _pool(options, ranks) as pool:
        run_before(before, candidate, pool)
        comparison = replace(evaluate_traced(case, candidate, pool), before=tuple(before))
    if options.json:
        _print_json(comparison_record(comparison))
    else:
        print(explain(comparison))  # noqa: T201 - the answer
    return _status(comparison.verdict.name)


def _mutants(options: argparse.Namespace) -> int:
    request, ranks = read_request(options)
    if not 1 <= options.pools <= 64:
        raise UsageError(f"--pools={options.pools}: use a number from 1 to 64")

    from rich.console import Console

    from harness.candidates import benign, mutants
    from harness.candidates.bank import STAGES
    from harness.check import draw, smallest
    from harness.detection import Watch, contest, measure, show, show_rivalry

    stages = {
        stage: [key for key, mutant in mutants.BANK.items() if mutant.stage == stage]
        for stage in STAGES
    }
    keys = read_keys(
        options.only, {**stages, "mutants": mutants.BANK.keys(), "benign": benign.BANK.keys()}
    )
    console = Console(stderr=options.json)
    with ExitStack() as stack:
        pools = [stack.enter_context(_pool(options, ranks)) for _ in range(options.pools)]
        for pool in pools:
            pool.start()
        batch = draw(request, ranks)
        chosen = [mutants.BANK[key] for key in keys if key in mutants.BANK]
        variants = [benign.BANK[key] for key in keys if key in benign.BANK]
        shrink = (
            (lambda found, pool: smallest(found, batch, request, pool)) if options.shrink else None
        )
        with Watch(console, len(chosen) + len(variants)) as watch:
            power = measure(chosen, variants, batch, pools, shrink, watch)
        show(power, console)
        document = power.record()
        if options.rivals:
            rivalry = contest(chosen, batch, pools[0])
            show_rivalry(rivalry, console)
            document["rivals"] = rivalry.record()
    if options.json:
        _print_json(document)
    return PASSED if power.passed else DIVERGED


def _doctor(options: argparse.Namespace) -> int:
    from harness.doctor import examine, show

    findings = examine()
    if options.json:
        _print_json(findings)
    else:
        show(findings)
    return PASSED


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


def _pool(options: argparse.Namespace, ranks: int) -> Any:
    from harness.ranks.device import choose
    from harness.ranks.pool import RankPool

    if not 0 < options.deadline < 1e6:
        raise UsageError(f"--deadline={options.deadline:g}: use a number of seconds above zero")
    device, transport = choose(options.device, ranks)
    return RankPool(ranks, device=device, transport=transport, deadline=options.deadline)


def _status(verdict: str) -> int:
    return {"EQUAL": PASSED, "WITHIN": PASSED, "DIVERGED": DIVERGED}.get(verdict, FAULT)


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=1))  # noqa: T201 - the answer
