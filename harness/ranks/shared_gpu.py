"""Whether ranks can share a GPU over NCCL, which older ones refuse and newer ones may hang in."""

from harness.candidates import locate
from harness.case import parse
from harness.ranks.hardware import loaded_nccl
from harness.ranks.placement import Placement
from harness.ranks.pool import RankPool
from harness.trace import Fault

OLDEST = (2, 30)
CANDIDATE = "native-gather"
START_DEADLINE, DEADLINE = 120.0, 30.0


def why_not(placement: Placement, ranks: int) -> str:
    """What came of trying, or nothing if it went well; an NCCL too old is not even tried."""
    version = loaded_nccl()
    if version is None:
        return "and this torch has loaded no NCCL"
    if version < OLDEST:
        return f"which NCCL {version[0]}.{version[1]} refuses and NCCL 2.30 may not"
    # Attention exchanges by all-to-all, and every rank takes part in the reduction of gradients.
    case = parse(f"case/1 rows={','.join(['3:111'] * (ranks // 2))} sp=2 dp={ranks // 2}")
    with RankPool(ranks, placement, deadline=DEADLINE, start_deadline=START_DEADLINE) as pool:
        outcome = pool.run(case, locate(CANDIDATE))
    if not isinstance(outcome, Fault):
        return ""
    # NCCL gives its reason in the last line.
    reason = outcome.log.strip().rpartition("\n")[2]
    return f"and a first step ended so: {outcome.summary}{reason and f' ({reason})'}"
