"""`golden`: make, verify and list the goldens of a store.

A golden holds one of three kinds of numbers, and each kind has a module here that computes them:

* plain training in fp64: `edit`, without ranks;
* the own step of a candidate at sp 1 in fp64, for models that plain training here does not know:
  `own`, on ranks;
* what a candidate computed on one device in a lower precision: `recorded`, on ranks.

`edit` has the commands that write a store or compute it again, `look` those that only read it.
"""

from collections.abc import Callable
from functools import wraps

from cyclopts import App

from harness.commands.golden import edit, look
from harness.commands.golden.store import DAMAGED
from harness.commands.options import print_message
from harness.untrusted import printable


def _with_status(command: Callable[..., int]) -> Callable[..., int]:
    """Wrap a command so that a bad golden becomes a message and the exit status DAMAGED."""

    @wraps(command)
    def wrapped(*arguments: object, **options: object) -> int:
        from harness.golden import BadGolden

        try:
            return command(*arguments, **options)
        except BadGolden as error:
            print_message(printable(" ".join(str(error).splitlines())))
            return DAMAGED

    return wrapped


app = App(name="golden", help_format="markdown")
app.command(_with_status(edit.generate))
app.command(_with_status(look.verify))
app.command(_with_status(edit.diff))
app.command(_with_status(edit.add))
app.command(_with_status(look.show), name="list")
