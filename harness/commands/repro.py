"""`repro`: show a failure again, fully traced, and explain it."""

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.case import Case, InvalidCase, parse
from harness.commands.options import (
    UsageError,
    against_of,
    against_option,
    answer,
    campaign_options,
    diagnose_option,
    known_option,
    pool_options,
    read_request,
    ready_to_report,
    report_option,
    status_of,
    step_options,
)
from harness.commands.ranks import open_pool

if TYPE_CHECKING:
    from harness.campaign.first_failure import Passed
    from harness.compare import Comparison
    from harness.failure.bundle import Bundle
    from harness.failure.replay import Shown
    from harness.ranks.pool import RankPool

HELP = "run one case, fully traced, and explain the outcome"
# Options of `check` that say what its seed draws.
CAMPAIGN = ("cases", "sp", "dp", "dtype", "loss", "kernel", "wrapper")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "lines",
        nargs="*",
        metavar="CASE-LINE|BUNDLE",
        help="the folder of a bundle, or its id in .harness/failures; or a case line. Of several "
        "case lines the last is judged; the same ranks run the others before it",
    )
    parser.add_argument(
        "--candidate",
        metavar="C",
        help="default: that of the bundle, unless it is a file or a module; or native-gather",
    )
    parser.add_argument("--shrink", action="store_true", help="shrink the case, for up to 60 s")
    parser.add_argument(
        "--bisect-layer", action="store_true", help="find the fewest layers that still fail"
    )
    parser.add_argument(
        "--like",
        action="store_true",
        help="cite the known bugs that give the same wrong numbers, for up to 60 s",
    )
    parser.add_argument(
        "--script", metavar="FILE", help="write what fails as one file for a bug report"
    )
    campaign_options(parser, cases=100, seed=None)
    step_options(parser)
    known_option(parser)
    against_option(parser, None, "bundle")
    diagnose_option(parser)
    report_option(parser)
    pool_options(parser)
    usual = {name: parser.get_default(name) for name in CAMPAIGN}
    parser.set_defaults(refuse=parser.error, usual=usual)


def run(options: argparse.Namespace) -> int:
    ready_to_report(options)
    if options.seed is not None:
        return _campaign(options)
    if not options.lines:
        options.refuse("the following arguments are required: CASE-LINE|BUNDLE, or --seed S")
    for name, value in options.usual.items():
        if getattr(options, name) != value:
            raise UsageError(f"--{name}={getattr(options, name)}: goes with --seed only")
    return _case(options)


def _case(options: argparse.Namespace) -> int:
    cases, candidate, bundle = _read(options.lines, options.candidate)
    if options.against is None and bundle is not None:
        options.against = bundle.origin.against
    needed, mesh = max((case.ranks, f"sp*dp={case.sp}*{case.dp}") for case in cases)
    seen = needed if bundle is None else max(needed, bundle.ranks)
    ranks = seen if options.ranks is None else options.ranks
    if ranks < needed:
        raise UsageError(f"--ranks={ranks}: {mesh} needs {needed} ranks")

    from harness.candidates import locate
    from harness.failure.replay import look
    from harness.judge import Job, Session

    _may_write(options.script, [candidate])
    with open_pool(options, ranks, [candidate]) as pool:
        beside = ranks if ranks > needed else 0
        *before, case = cases
        session = Session(pool)
        job = Job(case, locate(candidate), against_of(options))
        shown = look(job, session, before, beside)
        if bundle is not None:
            shown.beside(bundle, pool.device)
        if options.bisect_layer and shown.failed:
            shown.bisect_layers(session)
        failed = shown.failed
        if options.shrink and failed:
            shown.shrink(session)
        if options.diagnose and failed:
            shown.diagnose(session)
        if options.like and failed:
            shown.compare_with_known(session)
        if options.shrink and failed:
            shown.keep(session)
    return _answer(shown, options, pool)


def _campaign(options: argparse.Namespace) -> int:
    if options.lines:
        raise UsageError(f"--seed={options.seed}: draws its cases; leave out CASE-LINE|BUNDLE")
    chosen = argparse.Namespace(**vars(options))
    chosen.candidate = [options.candidate] if options.candidate else None
    request, ranks = read_request(chosen)

    from harness.campaign.first_failure import look_for
    from harness.campaign.request import origin
    from harness.failure.replay import Shown
    from harness.judge import Session

    _may_write(options.script, request.candidates)
    with open_pool(options, ranks, request.candidates) as pool:
        session = Session(pool)
        shown = look_for(request, session, shrink=options.shrink)
        if isinstance(shown, Shown):
            if options.bisect_layer and shown.failed:
                shown.bisect_layers(session)
            if options.diagnose and shown.failed:
                shown.diagnose(session)
            if options.like and shown.failed:
                shown.compare_with_known(session)
            shown.keep(session, origin(request))
    return _answer(shown, options, pool)


def _answer(shown: "Shown | Passed", options: argparse.Namespace, pool: "RankPool") -> int:
    status = status_of(shown.verdict, options.known)
    status = answer(options, {**shown.record(), "placement": pool.place}, status)
    if not options.json:
        print(shown.text())  # noqa: T201 - the answer
    if options.script is not None:
        _write_script(options.script, shown.comparison, pool)
    return status


def _read(texts: list[str], candidate: str | None) -> tuple[list[Case], str, "Bundle | None"]:
    if len(texts) > 1 or texts[0].startswith("case/"):
        return [parse(text) for text in texts], candidate or "native-gather", None
    (text,) = texts
    # A path may hold such a sign, and a line a slip of the pen: what is there on disk is a path.
    if "=" in text and not os.path.lexists(text):
        raise InvalidCase.because("case", text, "a case line starts with case/1")

    from harness.candidates.registry import vouched_for
    from harness.failure.bundle.read import find_bundle, read_bundle

    bundle = read_bundle(find_bundle(text))
    if candidate is None:
        candidate = vouched_for(bundle.candidate, f"bundle={text}")
    return [*bundle.before, bundle.case], candidate, bundle


def _may_write(name: str | None, candidates: Sequence[str]) -> None:
    """Refuse, before anything is run, a script that could not be written after it."""
    if name is None:
        return
    from harness.failure.script import NoScript, source_of

    if os.path.lexists(name):
        raise UsageError(f"--script={name}: is there already; name a new file")
    if not Path(name).parent.is_dir():
        raise UsageError(f"--script={name}: there is no folder {Path(name).parent}")
    try:
        for candidate in candidates:
            source_of(candidate)
    except NoScript as error:
        raise UsageError(f"--script={name}: {error}") from None


def _write_script(name: str, comparison: "Comparison | None", pool: "RankPool") -> None:
    """The whole file or none; where there is nothing to show, a sentence."""
    from harness.failure.script import NoScript, script

    draft = Path(f"{name}.{secrets.token_hex(4)}")
    try:
        text = script(comparison, str(pool.placement), pool.deadlines.case)
        draft.write_text(text)
        # Meanwhile somebody else may have written one.
        _may_write(name, [])
        draft.rename(name)
    except NoScript as why:
        print(f"harness: --script={name}: {why}", file=sys.stderr)  # noqa: T201 - no refusal
    except OSError as error:
        # What failed has its exit status all the same.
        said = f"--script={name}: cannot be written: {error.strerror}"
        print(f"harness: {said}", file=sys.stderr)  # noqa: T201 - no refusal
    finally:
        draft.unlink(missing_ok=True)
