"""Where the ranks of a pool run, as the command line of pytest has it."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.ranks.placement import Placement


def place(config: pytest.Config, ranks: int) -> "Placement":
    """For so many ranks of this worker; `NoPlace` if they cannot run as asked."""
    from harness.ranks.device import choose

    # A worker of xdist, or the only one there is.
    its = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    return choose(
        config.getoption("--harness-device"),
        config.getoption("--harness-transport"),
        ranks,
        worker=int(its["workerid"].removeprefix("gw")),
        workers=its["workercount"],
    )
