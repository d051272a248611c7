"""`golden list` and `verify`: nothing is written."""

import argparse

from harness.against import ITSELF, PLAIN
from harness.commands.golden import recorded
from harness.commands.golden.own import taken_over, whose
from harness.commands.golden.store import DAMAGED, console, described, store_of, whole
from harness.commands.options import (
    DIVERGED,
    ONLY_SP_1,
    PASSED,
    UsageError,
    against_of,
    answer,
    print_json,
    read_dtypes,
    read_sps,
    ready_to_report,
    status_of,
)
from harness.commands.ranks import open_pool


def show(options: argparse.Namespace) -> int:
    goldens = whole(options, store_of(options).files())
    if goldens is None:
        return DAMAGED
    if options.json:
        print_json({"goldens": [described(golden) for golden in goldens.values()]})
    else:
        from harness.golden.table import show_goldens

        show_goldens(goldens, console(options))
    return PASSED


def verify(options: argparse.Namespace) -> int:
    import time

    from harness.golden.generate import unconfirmed
    from harness.golden.own import is_own
    from harness.golden.own import unconfirmed as changed_at_sp_1
    from harness.golden.recorded import is_recorded
    from harness.golden.table import show_verified
    from harness.golden.verify import jobs, verify

    ready_to_report(options)
    started = time.monotonic()
    sps, dtypes = read_sps(options), read_dtypes(options.dtype or "fp64")
    if max(sps) > options.ranks:
        raise UsageError(
            f"--ranks={options.ranks}: --sp={max(sps)} needs {max(sps)} ranks; ask for more "
            "ranks, or for a smaller --sp"
        )
    goldens = whole(options, store_of(options).files())
    if goldens is None:
        return DAMAGED
    goldens = taken_over(options, goldens)
    own = {name: golden for name, golden in goldens.items() if is_own(golden)}
    kept = any(map(is_recorded, goldens.values()))
    if kept and options.dtype:
        raise UsageError(f"--dtype={options.dtype}: {options.store} was recorded in one dtype")
    if (kept and options.against) or (own and options.against == PLAIN):
        raise UsageError(
            f"--against={options.against}: goldens in {options.store} say themselves what their "
            "candidate is compared with; leave it out"
        )
    if kept:
        return recorded.verify(options, goldens)
    plain = {name: golden for name, golden in goldens.items() if name not in own}
    theirs, against = whose(options, goldens), against_of(options)
    if max(sps) == 1 and (against == ITSELF or not plain):
        raise UsageError(ONLY_SP_1)
    candidates = (options.candidate or ["native-gather", "native-local"]) if plain else []
    with open_pool(options, options.ranks, dict.fromkeys((*candidates, *theirs))) as pool:
        pool.start()
        # While the ranks are coming up.
        doubted = dict(unconfirmed(plain))
        pool.require_ready()
        place = pool.place
        doubted |= changed_at_sp_1(own, pool)
        told = goldens, candidates, sps, pool.size, dtypes
        asked = list(jobs(*told, against=against, doubted=doubted))
        verified = verify(asked, len(goldens), pool)
    shared = [sp for sp in sps if sp > 1]
    unformed = [sp for sp in shared if sp not in {job.case.sp for job in asked}]
    if options.sp or unformed == shared:
        verified.unformed = unformed
    verified.seconds = round(time.monotonic() - started, 3)
    if not options.json:
        show_verified(verified, doubted, console(options))
    document = {**verified.record(), "unconfirmed": doubted, "placement": place}
    status = DIVERGED if doubted else status_of(verified.verdict.name, options.known)
    return answer(options, document, status)
