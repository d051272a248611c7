"""`repro`: run a failing case again, fully traced, and explain the failure."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from harness.against import PLAIN, Against
from harness.case import Case, InvalidCase, parse
from harness.commands.campaign_request import read_request
from harness.commands.options import (
    Campaign,
    Judging,
    Report,
    Step,
    answer,
    print_message,
    require_writable_report,
    status_of,
)
from harness.commands.ranks import open_pool
from harness.commands.values import Compared, Seed, UsageError, as_text

if TYPE_CHECKING:
    from harness.campaign.first_failure import Passed
    from harness.compare import Comparison
    from harness.failure.bundle import Bundle
    from harness.failure.replay import Shown
    from harness.judge import Session
    from harness.ranks.pool import RankPool

# FILE:NAME or MODULE:NAME. A case line has a `=`, and so may the folder of a bundle.
STEP = re.compile(r"[^=]+:[A-Za-z_]\w*")
# Options that say which cases a seed draws; they need --seed.
DRAWING_OPTIONS = ("cases", "sp", "dp", "dtype", "loss", "kernel", "wrapper")


@dataclass(frozen=True, kw_only=True)
class Repro(Report, Judging, Step, Campaign):
    """The options of `repro`."""

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
    step at sp 1, whatever its model is; FILE:RECIPE: with plain training of that recipe; default:
    plain, or that of the bundle"""


Lines = Annotated[
    tuple[str, ...],
    Parameter(
        name="CASE-LINE|BUNDLE",
        help="the folder of a bundle, or its id in .harness/failures; or a case line. If there "
        "are several case lines, the last is judged; the same ranks run the others before it. "
        "path/to/file.py:NAME may stand beside them without --candidate",
    ),
]


def run(lines: Lines = (), /, *, options: Repro = Repro()) -> int:
    require_writable_report(options)
    lines, options = _with_candidate(lines, options)
    if options.seed is not None:
        return _run_campaign(lines, options)
    if not lines:
        raise UsageError("CASE-LINE|BUNDLE: is missing; name one, or use --seed S")
    for name in DRAWING_OPTIONS:
        value = getattr(options, name)
        if value != getattr(Repro, name):
            raise UsageError(f"--{name}={as_text(value)}: goes with --seed only")
    return _run_case(lines, options)


def _with_candidate(texts: Lines, options: Repro) -> tuple[Lines, Repro]:
    """Return the lines without a candidate that stands beside them, and the options with it."""
    steps = [text for text in texts if STEP.fullmatch(text) and not os.path.lexists(text)]
    if not steps:
        return texts, options
    named = [*([] if options.candidate is None else [options.candidate]), *steps]
    if len(named) > 1:
        raise UsageError(f"candidate={' and '.join(named)}: name one; repro judges one candidate")
    rest = tuple(text for text in texts if text not in steps)
    return rest, replace(options, candidate=named[0])


def _run_case(lines: Sequence[str], options: Repro) -> int:
    """Run the last of several cases, or that of a bundle, after the others on the same ranks."""
    cases, candidate, bundle = _read(lines, options.candidate)
    needed, mesh = max((case.ranks, f"sp*dp={case.sp}*{case.dp}") for case in cases)
    against: Against | None = options.against
    default = needed
    if bundle is not None:
        from harness.candidates.registry import require_trusted_reference

        default = max(needed, bundle.ranks)
        against = against or require_trusted_reference(bundle.origin.against, f"bundle={lines[0]}")
    ranks = default if options.ranks is None else options.ranks
    if ranks < needed:
        raise UsageError(f"--ranks={ranks}: {mesh} needs {needed} ranks")

    from harness.candidates import locate
    from harness.failure.replay import replay
    from harness.judge import Job, Session

    _require_writable(options.script, [candidate])
    with open_pool(options, ranks, [candidate]) as pool:
        more_than_needed = ranks if ranks > needed else 0
        *before, case = cases
        session = Session(pool)
        job = Job(case, locate(candidate), against or PLAIN)
        shown = replay(job, session, before, more_than_needed)
        if bundle is not None:
            shown.beside(bundle, pool.device)
        if shown.failed:
            _explain(shown, options, session, shrink=options.shrink)
            if options.shrink:
                shown.keep(session)
    return _answer(shown, options, pool)


def _run_campaign(lines: Sequence[str], options: Repro) -> int:
    """Run the cases that a seed draws up to the first failure."""
    if lines:
        raise UsageError(f"--seed={options.seed}: draws its cases; leave out CASE-LINE|BUNDLE")
    candidates = () if options.candidate is None else (options.candidate,)
    request, ranks = read_request(options, candidates, options)

    from harness.campaign.first_failure import find_first_failure
    from harness.campaign.request import campaign_record
    from harness.failure.replay import Shown
    from harness.judge import Session

    _require_writable(options.script, request.candidates)
    with open_pool(options, ranks, request.candidates) as pool:
        session = Session(pool)
        shown = find_first_failure(request, session, shrink=options.shrink)
        if isinstance(shown, Shown):
            if shown.failed:
                # `look_for` has shrunk it already.
                _explain(shown, options, session, shrink=False)
            shown.keep(session, campaign_record(request))
    return _answer(shown, options, pool)


def _explain(shown: "Shown", options: Repro, session: "Session", *, shrink: bool) -> None:
    """Find out about a failure what the options ask for."""
    if options.bisect_layer:
        shown.bisect_layers(session)
    if shrink:
        shown.shrink(session)
    if options.diagnose:
        shown.diagnose(session)
    if options.like:
        shown.compare_with_known(session)


def _answer(shown: "Shown | Passed", options: Repro, pool: "RankPool") -> int:
    status = status_of(shown.verdict, options.known)
    status = answer(options, {**shown.record(), "placement": pool.place}, status)
    if not options.json:
        print(shown.text())  # noqa: T201 - the output of the command
    if options.script is not None:
        _write_script(options.script, shown.comparison, pool)
    return status


def _read(texts: Sequence[str], candidate: str | None) -> tuple[list[Case], str, "Bundle | None"]:
    """Return the cases of case lines or of a bundle, the candidate, and the bundle."""
    if len(texts) > 1 or texts[0].startswith("case/"):
        return [parse(text) for text in texts], candidate or "native-gather", None
    (text,) = texts
    # A mistyped case line has a `=`, and so may a path: it is a path if it exists.
    if "=" in text and not os.path.lexists(text):
        raise InvalidCase.because("case", text, "a case line starts with case/1")

    from harness.candidates.registry import require_trusted
    from harness.failure.bundle.read import find_bundle, read_bundle

    bundle = read_bundle(find_bundle(text))
    if candidate is None:
        candidate = require_trusted(bundle.candidate, f"bundle={text}")
    return [*bundle.before, bundle.case], candidate, bundle


def _require_writable(name: str | None, candidates: Sequence[str]) -> None:
    """Raise `UsageError` if a script could not be written under this name."""
    if name is None:
        return
    from harness.failure.source import NoScript, source_of

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
    """Write the failure as a script, or print why not; neither changes the exit status."""
    from harness.failure.script import script
    from harness.failure.source import NoScript
    from harness.storage import write_file

    try:
        text = script(comparison, str(pool.placement), pool.deadlines.case)
        # Another process may have created the file since the first check.
        _require_writable(name, [])
        write_file(Path(name), text.encode())
        print(f"script: {name}", file=sys.stderr)  # noqa: T201 - as for a page
    except NoScript as why:
        print_message(f"--script={name}: {why}")
    except OSError as error:
        print_message(f"--script={name}: cannot be written: {error.strerror}")
