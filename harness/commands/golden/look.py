"""`golden list` and `verify`: show a store, or run candidates on it; neither writes to it."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.against import ITSELF, PLAIN, Against, names_recipe
from harness.commands.campaign_request import DIALECTS, ONLY_SP_1, usual_sps
from harness.commands.engines import open_engine
from harness.commands.golden import recorded
from harness.commands.golden.options import Stored, Verify
from harness.commands.golden.own import adopt, find_owners
from harness.commands.golden.store import (
    DAMAGED,
    console_for,
    golden_record,
    open_store,
    read_goldens,
)
from harness.commands.options import (
    DIVERGED,
    PASSED,
    answer,
    print_json,
    require_writable_report,
    status_of,
)
from harness.commands.ranks import open_pool
from harness.commands.values import UsageError, as_text
from harness.engine.engine import run_all
from harness.engine.lot import WHOLE, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized

    from harness.golden.verify import GoldenResults


# Parts of the goldens that several pools take in turn, so that no pool waits for a slow one.
PIECES = 32


def show(*, options: Stored = Stored()) -> int:
    """List every golden and its purpose."""
    goldens = read_goldens(options, open_store(options).files())
    if goldens is None:
        return DAMAGED
    if options.json:
        print_json({"goldens": [golden_record(golden) for golden in goldens.values()]})
    else:
        from harness.golden.table import show_goldens

        show_goldens(goldens, console_for(options))
    return PASSED


def verify(*, options: Verify = Verify()) -> int:
    """Check that the store is whole and that candidates agree with it."""
    import time

    from harness.candidates import locate
    from harness.golden.own import is_own
    from harness.golden.recorded import is_recorded
    from harness.golden.table import show_verified
    from harness.golden.verify import GoldenResults, golden_jobs

    require_writable_report(options)
    started = time.monotonic()
    sps, dtypes = options.sp or usual_sps(options.ranks), options.dtype or ("fp64",)
    if max(sps) > options.ranks:
        raise UsageError(
            f"--ranks={options.ranks}: --sp={max(sps)} needs {max(sps)} ranks; ask for more "
            "ranks, or for a smaller --sp"
        )
    goldens = read_goldens(options, open_store(options).files())
    if goldens is None:
        return DAMAGED
    goldens = adopt(options, goldens)
    own = {name: golden for name, golden in goldens.items() if is_own(golden)}
    if any(map(is_recorded, goldens.values())):
        _refuse_for_recorded(options)
        return recorded.verify(options, goldens)
    if own and options.against == PLAIN:
        raise UsageError(_against_refused(options))
    plain = {name: golden for name, golden in goldens.items() if name not in own}
    owners, against = find_owners(options, goldens), options.against or PLAIN
    if max(sps) == 1 and (against == ITSELF or not plain):
        raise UsageError(ONLY_SP_1)
    candidates = (options.candidate or DIALECTS) if plain else ()
    asked = goldens, candidates, sps, options.ranks, dtypes
    opened_with = options, asked, against, [*dict.fromkeys((*candidates, *owners))]
    parts = [*map(str, _cut(options, goldens))]
    with open_engine(
        open_verifying, opened_with, options, options.ranks, _read_result, len(parts)
    ) as engine:
        results = dict(run_all(parts, engine))
    verified = sum((results[part].verified for part in parts), GoldenResults(goldens=0))
    whys = {name: why for part in parts for name, why in results[part].doubted.items()}
    # In the order of the store, whichever part was done first.
    doubted = {name: whys[name] for name in goldens if name in whys}
    place = results[parts[0]].placement
    shared = [sp for sp in sps if sp > 1]
    named = [locate(name) for name in candidates]
    planned = golden_jobs(goldens, named, sps, options.ranks, dtypes, against=against)
    formed = {asked.job.case.sp for asked in planned}
    unformed = [sp for sp in shared if sp not in formed]
    if options.sp or unformed == shared:
        verified.unformed = unformed
    verified.seconds = round(time.monotonic() - started, 3)
    if not options.json:
        show_verified(verified, doubted, console_for(options))
    document = {**verified.record(), "unconfirmed": doubted, "placement": place}
    status = DIVERGED if doubted else status_of(verified.verdict.name, options.known)
    return answer(options, document, status)


def _refuse_for_recorded(options: Verify) -> None:
    """Raise `UsageError` if an option does not apply to goldens that were recorded on a device."""
    if options.dtype:
        raise UsageError(
            f"--dtype={as_text(options.dtype)}: {options.store} was recorded in one dtype"
        )
    if options.against and not names_recipe(options.against):
        raise UsageError(_against_refused(options))
    if not _has_one_pool(options):
        raise UsageError(
            f"--pools={options.pools}, --on={options.on}: {options.store} was recorded, and that "
            "is verified on one pool here; leave these out"
        )


def _against_refused(options: Verify) -> str:
    return (
        f"--against={options.against}: goldens in {options.store} say themselves what their "
        "candidate is compared with; leave it out"
    )


class Result(NamedTuple):
    """The outcome of one part of the goldens."""

    verified: "GoldenResults"
    # By name, why a reference does not confirm a golden.
    doubted: dict[str, str]
    placement: dict[str, str]


def _read_result(record: dict[str, Any]) -> Result:
    from harness.golden.verify import GoldenResults

    return Result(GoldenResults.from_part(record.pop("verified")), **record)


def _has_one_pool(options: Verify) -> bool:
    return (options.pools, options.on) == ("1", "here")


def _cut(options: Verify, goldens: "Sized") -> list[Part]:
    """Return the parts that pools take in turn; one pool takes all goldens as one part."""
    number = 1 if _has_one_pool(options) else max(1, min(len(goldens), PIECES))
    return [Part(k, number) for k in range(1, number + 1)]


@contextmanager
def open_verifying(
    options: Verify,
    asked: tuple[Any, ...],
    against: Against,
    candidates: list[str],
    worker: Part = WHOLE,
) -> "Iterator[Callable[[str], dict[str, Any]]]":
    """Open ranks and yield a function that verifies one part of the goldens.

    `asked` has the goldens and what candidates run on them; see `harness.golden.verify.jobs`.
    """
    from harness.candidates import locate
    from harness.golden.generate import find_unconfirmed
    from harness.golden.own import find_unconfirmed as changed_at_sp_1
    from harness.golden.own import is_own
    from harness.golden.verify import golden_jobs, verify
    from harness.judge import Session

    goldens, names, *sizes = asked
    named = [locate(name) for name in names]
    parts = {str(part): part for part in _cut(options, goldens)}
    with open_pool(options, options.ranks, candidates, worker) as pool:
        pool.start()
        session = Session(pool)

        def verify_part(part: str) -> dict[str, Any]:
            chosen = {name: goldens[name] for name in parts[part].piece([*goldens])}
            own = {name: golden for name, golden in chosen.items() if is_own(golden)}
            plain = {name: golden for name, golden in chosen.items() if name not in own}
            # The references need no ranks, so they run while the ranks are starting.
            doubted = dict(find_unconfirmed(plain))
            pool.require_ready()
            doubted |= changed_at_sp_1(own, session)
            runs = list(golden_jobs(chosen, named, *sizes, against=against, doubted=doubted))
            verified = verify(runs, len(chosen), session)
            return {"verified": verified.part(), "doubted": doubted, "placement": pool.place}

        yield verify_part
