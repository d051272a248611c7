"""The command that shows a comparison again, on ranks like those that it had."""

import shlex
from collections.abc import Iterator
from functools import cache

from harness.against import ITSELF, names_recipe
from harness.compare import Comparison, RanOn

# The message of a CUDA error begins so. torch often raises it at a later call than the wrong one.
CUDA_ERROR = "CUDA error"


def replay(comparison: Comparison) -> str:
    """Return the command that shows it again."""
    inquiry = comparison.inquiry
    cases = " ".join(f'"{case}"' for case in (*inquiry.before, comparison.case))
    words = ["python -m harness repro", cases, "--candidate", shlex.quote(comparison.candidate)]
    if comparison.ran_on is not None:
        words += rank_options(comparison.ran_on)
    if comparison.against == ITSELF or names_recipe(comparison.against):
        words += ["--against", shlex.quote(comparison.against)]
    if inquiry.ranks:
        words.append(f"--ranks {inquiry.ranks}")
    if comparison.fault and CUDA_ERROR in comparison.fault.summary:
        # With this variable, the stack is that of the call that went wrong.
        words.insert(0, "CUDA_LAUNCH_BLOCKING=1")
    return " ".join(words)


# Cached because every comparison of a campaign is written with its command.
@cache
def rank_options(ran_on: RanOn) -> tuple[str, ...]:
    """Return the options that a command needs to run its ranks there."""
    return tuple(_options(ran_on))


def _options(ran_on: RanOn) -> Iterator[str]:
    # Imported here because a page of a bundle is made without torch.
    from harness.ranks.device import choose_placement
    from harness.ranks.pool import DEADLINE

    if ran_on.device != choose_placement("auto", "auto", ran_on.ranks).device:
        yield from ("--device", ran_on.device)
    if ran_on.transport != choose_placement(ran_on.device, "auto", ran_on.ranks).transport:
        yield from ("--transport", ran_on.transport)
    if ran_on.deadline != DEADLINE:
        yield from ("--deadline", f"{ran_on.deadline:g}")
