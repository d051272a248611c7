"""How Hypothesis makes a failing example again: a decorator that it names when it is told to."""

import re
from typing import Any

from hypothesis import is_hypothesis_test, settings

# Where Hypothesis, its own pytest plugin as well, looks for the settings of a test.
_SETTINGS = "_hypothesis_internal_use_settings"
_DECORATOR = re.compile(r"@reproduce_failure\('[^']*', b'[^']*'\)")


def ask_for_blob(test: Any) -> None:
    """Have Hypothesis name it should this test fail; nothing for a test that is not its own."""
    if is_hypothesis_test(test):
        function = getattr(test, "__func__", test)
        chosen = getattr(function, _SETTINGS, settings.default)
        setattr(function, _SETTINGS, settings(chosen, print_blob=True))


def blob_of(error: BaseException) -> str:
    """What it said beside this error; of several examples the one that was run last."""
    said = [
        *(blob_of(one) for one in getattr(error, "exceptions", ())),
        *_DECORATOR.findall("\n".join(getattr(error, "__notes__", ()))),
    ]
    return next((one for one in reversed(said) if one), "")
