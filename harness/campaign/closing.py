"""The last line of `check` and `merge`: the exit status, and the reason for it. Needs no torch."""

from harness.campaign.summary import INTERRUPTED, LIMIT, Summary
from harness.campaign.tally import PASSING, Tally, worst

LEAVE_OUT = "Leave it out with --sp, --dtype, --loss and --set"
MOST_LEANS = 3
# If no larger share of the cases is not judgeable in its dtype, the last line does not warn.
MOST_HIDDEN = 0.1


def closing(summary: Summary, status: int) -> str:
    """Return the last line: the exit status, and why it is that."""
    more = "raise --all-up-to" if summary.request.up_to else "ask for more --cases"
    advice = "Raise --limit" if summary.ended == LIMIT else f"{LEAVE_OUT}, or {more}"
    tallies = summary.tallies.items()
    reasons = [why for name, tally in tallies if (why := _why_no_pass(name, tally, advice))]
    warnings = [
        text
        for name, tally in tallies
        for text in (_hidden_warning(name, tally), _warn_of_settings(name, tally))
        if text
    ]
    if status == 0 and reasons:
        reasons = ["every case passed, but for what is listed as known"]
    if summary.missing:
        reasons.append("shards are missing")
    if summary.undrawn:
        drawn = "; ".join(f"no case with {value} was drawn" for value in summary.undrawn)
        reasons.append(f"{drawn}: {more}")
    if summary.ended == INTERRUPTED:
        reasons.append("interrupted")
    return f"exit status {status}: {'; '.join([*(reasons or [_passed(summary)]), *warnings])}"


def _passed(summary: Summary) -> str:
    """Say what passed; if these are all small cases, how many there are, and who refuses some."""
    if summary.ended:
        return "every case that was judged passed"
    if not summary.request.up_to:
        return "every case passed"
    part = f"{summary.size:,} of the " if summary.size < summary.request.count else ""
    count, tokens = summary.request.count, summary.request.up_to
    refusing = [
        f"{name} was judged on {tally.judged:,}, which passed"
        for name, tally in summary.tallies.items()
        if tally.judged < summary.size
    ]
    cases = f"all {part}{count:,} cases of up to {tokens} tokens"
    return f"of {cases} {'; '.join(refusing)}" if refusing else f"{cases} passed"


def _why_no_pass(candidate: str, tally: Tally, advice: str) -> str:
    """Return why a candidate did not pass, or an empty text; the advice says how to see more."""
    if tally.verdict in PASSING:
        return ""
    if not tally.verdicts:
        return f"{candidate} was given no case"
    if tally.failures:
        kinds = {failure["verdict"] for failure in tally.failures}
        return f"{candidate} is {worst(kinds)} on {tally.failures[0]['case']}"
    if tally.lacking or not tally.judged:
        return _why_too_few(candidate, tally)
    return f"{candidate} {_why_over_all_cases(tally, advice)}"


def _why_over_all_cases(tally: Tally, advice: str) -> str:
    """Return why a candidate did not pass although it may have passed every single case."""
    if tally.leans:
        leans = "; ".join(tally.leans[:MOST_LEANS])
        return f"is off by the same in every case, and by too little to show in one: {leans}"
    if tally.is_unshared:
        return (
            f"shared nothing: in none of {tally.shared} cases at sp > 1 did one rank need "
            "anything of another"
        )
    if tally.unexamined:
        unexamined = "; ".join(tally.unexamined)
        return f"was not judged on enough of what was asked for: {unexamined}. {advice}"
    forgiven = "which passes with --known pass" if tally.passed else "and passes nothing"
    return f"fails as is listed of it, {forgiven}"


def _why_too_few(candidate: str, tally: Tally) -> str:
    """Return why a candidate was judged on fewer cases than requested."""
    if tally.hidden > tally.refused.total():
        return (
            f"{candidate} could be judged on {tally.judged or 'none'} of "
            f"{tally.judged + tally.hidden} cases"
        )
    drawn, (reason, count) = tally.verdicts.total(), tally.refused.most_common(1)[0]
    wanted = tally.judged + tally.lacking
    return (
        f"{candidate} supports {tally.judged or 'none'} of {drawn} cases that were drawn"
        f"{f', too few to be judged on {wanted}' if tally.lacking else ''}; {count} times because "
        f"of '{reason}': leave such cases out with --loss, --dtype, --sp, --dp, --ranks, --kernel "
        "and --set"
    )


def _warn_of_settings(candidate: str, tally: Tally) -> str:
    """Return a warning if settings changed nothing, or an empty text."""
    if not tally.without_effect:
        return ""
    return (
        f"{candidate} does the very same with and without {', '.join(tally.without_effect)}: "
        "the same bits and messages in each of a few cases"
    )


def _hidden_warning(candidate: str, tally: Tally) -> str:
    """Return a warning if too many cases were not judgeable, or an empty text."""
    if tally.hidden <= MOST_HIDDEN * (tally.judged + tally.hidden):
        return ""
    dtypes = ", ".join(tally.unjudgeable)
    return (
        f"more than a tenth of the cases of {candidate} were not judgeable in {dtypes}: ask for a "
        "dtype that rounds less"
    )
