"""Ranks, ready to judge the lots of a campaign."""

import argparse
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.campaign.lot import WHOLE, Part
from harness.campaign.request import Request
from harness.commands.ranks import open_pool
from harness.importing import without_a_search_for_garbage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.campaign.examine import Examiner


@contextmanager
def open_examiner(
    options: argparse.Namespace,
    request: Request,
    ranks: int,
    part: Part,
    until: float,
    worker: Part = WHOLE,
) -> "Iterator[Examiner]":
    """For this part of a campaign, alone on this host or as one of several there."""
    with without_a_search_for_garbage():
        from harness.campaign.examine import Examiner
        from harness.campaign.supply import require_cases

    with open_pool(options, ranks, request.candidates, worker) as pool:
        require_cases(request, pool)
        yield Examiner(
            request=request, pool=pool, until=until, part=part, diagnoses=options.diagnose
        )
