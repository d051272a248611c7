"""Hypothesis in a test of ours: it waits for ranks, and names what makes a failure again."""

import re
from typing import Any

from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

# Where Hypothesis, its own pytest plugin as well, looks for the settings of a test.
_SETTINGS = "_hypothesis_internal_use_settings"
_DECORATOR = re.compile(r"@reproduce_failure\('[^']*', b'[^']*'\)")


def make_ready(test: Any) -> None:
    """For a test of Hypothesis that judges cases; nothing for any other."""
    if is_hypothesis_test(test):
        function = getattr(test, "__func__", test)
        chosen: settings = getattr(function, _SETTINGS, None) or settings()
        ready = settings(
            chosen,
            print_blob=True,
            # The pool has deadlines of its own, and a case takes as long as its ranks need.
            deadline=None,
            suppress_health_check={*chosen.suppress_health_check, HealthCheck.too_slow},
            # Lines of the harness explain no failure of a step.
            phases=[phase for phase in chosen.phases if phase is not Phase.explain],
        )
        setattr(function, _SETTINGS, ready)


def blob_of(error: BaseException) -> str:
    """What it said beside this error; of several examples the one that was run last."""
    said = [
        *(blob_of(one) for one in getattr(error, "exceptions", ())),
        *_DECORATOR.findall("\n".join(getattr(error, "__notes__", ()))),
    ]
    return next((one for one in reversed(said) if one), "")
