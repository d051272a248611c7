"""`repro`: show a failure again, fully traced, and explain it."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from harness.against import PLAIN
from harness.case import Case, InvalidCase, parse
from harness.commands.campaign_request import read_request
from harness.commands.options import (
    Campaign,
    Judged,
    Report,
    Step,
    answer,
    ready_to_report,
    status_of,
)
from harness.commands.ranks import open_pool
from harness.commands.values import Compared, Seed, UsageError, as_text

if TYPE_CHECKING:
    from harness.campaign.first_failure import Passed
    from harness.compare import Comparison
    from harness.failure.bundle import Bundle
    from harness.failure.replay import Shown
    from harness.ranks.pool import RankPool

# Options of `check` that say what its seed draws.
CAMPAIGN = ("cases", "sp", "dp", "dtype", "loss", "kernel", "wrapper")


@dataclass(frozen=True, kw_only=True)
class Repro(Report, Judged, Step, Campaign):
    """What is run again, and what is done with a failure."""

    candidate: Annotated[str | None, Parameter(metavar="C")] = None
    """default: that of the bundle, unless it is a file or a module; or native-gather"""
    shrink: bool = False
    """shrink the case, for up to 60 s"""
    bisect_layer: bool = False
    """find the fewest layers that still fail"""
    like: bool = False
    """cite the known bugs that give the same wrong numbers, for up to 60 s"""
    script: Annotated[str | None, Parameter(metavar="FILE")] = None
    """write what fails as one file for a bug report"""
    seed: Seed | None = None
    """run the cases of `check --seed S` to the first failure"""
    against: Compared | None = None
    """plain: compare with plain training of the harness's model; self: with the candidate's own
    step at sp 1, whatever its model is; default: plain, or that of the bundle"""


Lines = Annotated[
    tuple[str, ...],
    Parameter(
        name="CASE-LINE|BUNDLE",
        help="the folder of a bundle, or its id in .harness/failures; or a case line. Of several "
        "case lines the last is judged; the same ranks run the others before it",
    ),
]


def run(lines: Lines = (), /, *, options: Repro = Repro()) -> int:
    ready_to_report(options)
    if options.seed is not None:
        return _campaign(lines, options)
    if not lines:
        raise UsageError("CASE-LINE|BUNDLE: is missing; name one, or use --seed S")
    for name in CAMPAIGN:
        value = getattr(options, name)
        if value != getattr(Repro, name):
            raise UsageError(f"--{name}={as_text(value)}: goes with --seed only")
    return _case(lines, options)


def _case(lines: Sequence[str], options: Repro) -> int:
    cases, candidate, bundle = _read(lines, options.candidate)
    needed, mesh = max((case.ranks, f"sp*dp={case.sp}*{case.dp}") for case in cases)
    against, seen = options.against, needed
    if bundle is not None:
        against, seen = against or bundle.origin.against, max(needed, bundle.ranks)
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
        job = Job(case, locate(candidate), against or PLAIN)
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


def _campaign(lines: Sequence[str], options: Repro) -> int:
    if lines:
        raise UsageError(f"--seed={options.seed}: draws its cases; leave out CASE-LINE|BUNDLE")
    candidates = () if options.candidate is None else (options.candidate,)
    request, ranks = read_request(options, candidates, options)

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


def _answer(shown: "Shown | Passed", options: Repro, pool: "RankPool") -> int:
    status = status_of(shown.verdict, options.known)
    status = answer(options, {**shown.record(), "placement": pool.place}, status)
    if not options.json:
        print(shown.text())  # noqa: T201 - the answer
    if options.script is not None:
        _write_script(options.script, shown.comparison, pool)
    return status


def _read(texts: Sequence[str], candidate: str | None) -> tuple[list[Case], str, "Bundle | None"]:
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
    from harness.storage import write_file

    try:
        text = script(comparison, str(pool.placement), pool.deadlines.case)
        # Meanwhile somebody else may have written one.
        _may_write(name, [])
        write_file(Path(name), text.encode())
    except NoScript as why:
        print(f"harness: --script={name}: {why}", file=sys.stderr)  # noqa: T201 - no refusal
    except OSError as error:
        # What failed has its exit status all the same.
        said = f"--script={name}: cannot be written: {error.strerror}"
        print(f"harness: {said}", file=sys.stderr)  # noqa: T201 - no refusal
