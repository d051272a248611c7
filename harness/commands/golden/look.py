"""`golden list` and `verify`: nothing is written."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.against import ITSELF, PLAIN, Against
from harness.commands.campaign_request import ONLY_SP_1, OWN, usual_sps
from harness.commands.engines import open_engine
from harness.commands.golden import recorded
from harness.commands.golden.options import Stored, Verify
from harness.commands.golden.own import taken_over, whose
from harness.commands.golden.store import DAMAGED, console, described, store_of, whole
from harness.commands.options import (
    DIVERGED,
    PASSED,
    answer,
    print_json,
    ready_to_report,
    status_of,
)
from harness.commands.ranks import open_pool
from harness.commands.values import UsageError, as_text
from harness.engine.engine import run_all
from harness.engine.lot import WHOLE, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized

    from harness.golden.verify import Verified

# So many parts of the goldens for several pools: where one is slow, the others go on.
PIECES = 32


def show(*, options: Stored = Stored()) -> int:
    """List every golden and its purpose."""
    goldens = whole(options, store_of(options).files())
    if goldens is None:
        return DAMAGED
    if options.json:
        print_json({"goldens": [described(golden) for golden in goldens.values()]})
    else:
        from harness.golden.table import show_goldens

        show_goldens(goldens, console(options))
    return PASSED


def verify(*, options: Verify = Verify()) -> int:
    """Check that the store is whole and that candidates agree with it."""
    import time

    from harness.candidates import locate
    from harness.golden.own import is_own
    from harness.golden.recorded import is_recorded
    from harness.golden.table import show_verified
    from harness.golden.verify import Verified, jobs

    ready_to_report(options)
    started = time.monotonic()
    sps, dtypes = options.sp or usual_sps(options.ranks), options.dtype or ("fp64",)
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
        raise UsageError(
            f"--dtype={as_text(options.dtype)}: {options.store} was recorded in one dtype"
        )
    if (kept and options.against) or (own and options.against == PLAIN):
        raise UsageError(
            f"--against={options.against}: goldens in {options.store} say themselves what their "
            "candidate is compared with; leave it out"
        )
    if kept and not _on_one(options):
        raise UsageError(
            f"--pools={options.pools}, --on={options.on}: {options.store} was recorded, and that "
            "is verified on one pool here; leave these out"
        )
    if kept:
        return recorded.verify(options, goldens)
    plain = {name: golden for name, golden in goldens.items() if name not in own}
    theirs, against = whose(options, goldens), options.against or PLAIN
    if max(sps) == 1 and (against == ITSELF or not plain):
        raise UsageError(ONLY_SP_1)
    candidates = (options.candidate or OWN) if plain else ()
    asked = goldens, candidates, sps, options.ranks, dtypes
    told = options, asked, against, [*dict.fromkeys((*candidates, *theirs))]
    parts = [*map(str, pieces(options, goldens))]
    with open_engine(open_verifying, told, options, options.ranks, _found, len(parts)) as engine:
        found = dict(run_all(parts, engine))
    verified = sum((found[part].verified for part in parts), Verified(goldens=0))
    whys = {name: why for part in parts for name, why in found[part].doubted.items()}
    # In the order of the store, whichever part was done first.
    doubted = {name: whys[name] for name in goldens if name in whys}
    place = found[parts[0]].placement
    shared = [sp for sp in sps if sp > 1]
    named = [locate(name) for name in candidates]
    every = jobs(goldens, named, sps, options.ranks, dtypes, against=against)
    formed = {asked.job.case.sp for asked in every}
    unformed = [sp for sp in shared if sp not in formed]
    if options.sp or unformed == shared:
        verified.unformed = unformed
    verified.seconds = round(time.monotonic() - started, 3)
    if not options.json:
        show_verified(verified, doubted, console(options))
    document = {**verified.record(), "unconfirmed": doubted, "placement": place}
    status = DIVERGED if doubted else status_of(verified.verdict.name, options.known)
    return answer(options, document, status)


class Found(NamedTuple):
    """What a part of the goldens came to."""

    verified: "Verified"
    doubted: dict[str, str]
    placement: dict[str, str]


def _found(record: dict[str, Any]) -> Found:
    from harness.golden.verify import Verified

    return Found(Verified.from_part(record.pop("verified")), **record)


def _on_one(options: Verify) -> bool:
    return (options.pools, options.on) == ("1", "here")


def pieces(options: Verify, goldens: "Sized") -> list[Part]:
    """The parts that pools take in turn; one pool takes all at once, and has no gaps."""
    number = 1 if _on_one(options) else max(1, min(len(goldens), PIECES))
    return [Part(k, number) for k in range(1, number + 1)]


@contextmanager
def open_verifying(
    options: Verify,
    asked: tuple[Any, ...],
    against: Against,
    candidates: list[str],
    worker: Part = WHOLE,
) -> "Iterator[Callable[[str], dict[str, Any]]]":
    """Ranks, ready to verify one part of the goldens after the other."""
    from harness.candidates import locate
    from harness.golden.generate import unconfirmed
    from harness.golden.own import is_own
    from harness.golden.own import unconfirmed as changed_at_sp_1
    from harness.golden.verify import jobs, verify
    from harness.judge import Session

    goldens, names, *how = asked
    named = [locate(name) for name in names]
    parts = {str(each): each for each in pieces(options, goldens)}
    with open_pool(options, options.ranks, candidates, worker) as pool:
        pool.start()
        session = Session(pool)

        def verified(part: str) -> dict[str, Any]:
            there = {name: goldens[name] for name in parts[part].piece([*goldens])}
            own = {name: golden for name, golden in there.items() if is_own(golden)}
            # While the ranks are coming up.
            doubted = dict(unconfirmed({n: g for n, g in there.items() if n not in own}))
            pool.require_ready()
            doubted |= changed_at_sp_1(own, session)
            runs = list(jobs(there, named, *how, against=against, doubted=doubted))
            found = verify(runs, len(there), session)
            return {"verified": found.part(), "doubted": doubted, "placement": pool.place}

        yield verified
