"""Adapt Hypothesis to tests that judge cases: no deadline, and a way to reproduce a failure."""

import re
from typing import Any

from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

# The attribute of a test in which Hypothesis, and its pytest plugin, look for its settings.
_SETTINGS = "_hypothesis_internal_use_settings"
_DECORATOR = re.compile(r"@reproduce_failure\('[^']*', b'[^']*'\)")


def adapt_settings(test: Any) -> None:
    """Change the settings of a Hypothesis test that judges cases; ignore any other test."""
    if is_hypothesis_test(test):
        function = getattr(test, "__func__", test)
        chosen: settings = getattr(function, _SETTINGS, None) or settings()
        adapted = settings(
            chosen,
            print_blob=True,
            # The pool has deadlines of its own, and a case takes as long as its ranks need.
            deadline=None,
            suppress_health_check={*chosen.suppress_health_check, HealthCheck.too_slow},
            # That phase names lines of the harness, which do not explain a failure of a step.
            phases=[phase for phase in chosen.phases if phase is not Phase.explain],
        )
        setattr(function, _SETTINGS, adapted)


def blob_of(error: BaseException) -> str:
    """Return the decorator that reproduces a failure, from the notes that Hypothesis left.

    If there are several, take the one of the example that ran last; return "" if there is none.
    """
    decorators = [
        *(blob_of(part) for part in getattr(error, "exceptions", ())),
        *_DECORATOR.findall("\n".join(getattr(error, "__notes__", ()))),
    ]
    return next((decorator for decorator in reversed(decorators) if decorator), "")
