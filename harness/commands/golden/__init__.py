"""`golden`: cases that last, made, kept and checked."""

import sys
from collections.abc import Callable
from functools import wraps

from cyclopts import App

from harness.commands.golden import edit, look
from harness.commands.golden.store import DAMAGED
from harness.untrusted import printable


def _told(act: Callable[..., int]) -> Callable[..., int]:
    """A command for which a golden that is no good has an exit status of its own."""

    @wraps(act)
    def command(*arguments: object, **options: object) -> int:
        from harness.golden import BadGolden

        try:
            return act(*arguments, **options)
        except BadGolden as error:
            print(f"harness: {printable(' '.join(str(error).splitlines()))}", file=sys.stderr)  # noqa: T201
            return DAMAGED

    return command


app = App(name="golden", help_format="markdown")
app.command(_told(edit.generate))
app.command(_told(look.verify))
app.command(_told(edit.diff))
app.command(_told(edit.add))
app.command(_told(look.show), name="list")
