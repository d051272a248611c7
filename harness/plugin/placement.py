"""Where the ranks of a pool run, according to the command line of pytest."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.rank_program.placement import Placement


def place(config: pytest.Config, ranks: int) -> "Placement":
    """Return the placement of so many ranks of this worker; raise `NoPlace` if there is none."""
    from harness.ranks.device import choose_placement

    # Without pytest-xdist this process is the only worker.
    worker = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    return choose_placement(
        config.getoption("--harness-device"),
        config.getoption("--harness-transport"),
        ranks,
        worker=int(worker["workerid"].removeprefix("gw")),
        workers=worker["workercount"],
    )
