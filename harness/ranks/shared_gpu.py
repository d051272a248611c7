"""Try whether ranks can share a GPU over NCCL: older NCCLs refuse it, newer ones may hang."""

from harness.candidates import locate
from harness.case import parse
from harness.rank_program.hardware import nccl_version
from harness.rank_program.placement import Placement
from harness.ranks.pool import RankPool
from harness.trace import Fault

OLDEST = (2, 30)
CANDIDATE = "native-gather"
START_DEADLINE, DEADLINE = 120.0, 30.0


def why_ranks_cannot_share(placement: Placement, ranks: int) -> str:
    """Return why ranks cannot share a GPU, or ""; an NCCL that is too old is not tried."""
    version = nccl_version()
    if version is None:
        return "and this torch has loaded no NCCL"
    if version < OLDEST:
        return f"which NCCL {version[0]}.{version[1]} refuses and NCCL 2.30 may not"
    # Its attention uses all-to-all, and its gradients are reduced over all ranks.
    case = parse(f"case/1 rows={','.join(['3:111'] * (ranks // 2))} sp=2 dp={ranks // 2}")
    with RankPool(ranks, placement, deadline=DEADLINE, start_deadline=START_DEADLINE) as pool:
        outcome = pool.run(case, locate(CANDIDATE))
    if not isinstance(outcome, Fault):
        return ""
    # NCCL gives its reason in the last line.
    reason = outcome.log.strip().rpartition("\n")[2]
    return f"and a first step ended so: {outcome.summary}{reason and f' ({reason})'}"
