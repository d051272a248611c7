"""`golden`: cases that last, made, kept and checked."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.case import parse
from harness.commands.options import (
    DIVERGED,
    PASSED,
    UsageError,
    json_option,
    open_pool,
    pool_options,
    print_json,
    read_numbers,
    status_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from harness.golden import Golden, Store

HELP = "make, check and show the goldens"
DAMAGED = 4


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(subject="golden")
    known = parser.add_subparsers(required=True, metavar="generate|verify|diff|add|list")

    generate = known.add_parser("generate", help="compute all again; stored bits stay")
    generate.add_argument("--accept", action="store_true", help="put moved bits into their place")
    _reason_option(generate)
    generate.set_defaults(do=_generate)

    verify = known.add_parser("verify", help="the store is whole, and candidates agree with it")
    verify.add_argument(
        "--candidate",
        action="append",
        metavar="C",
        help="may be repeated; default: native-gather and native-local",
    )
    verify.add_argument("--sp", default="1,2,4", metavar="LIST", help="default: 1,2,4")
    pool_options(verify, ranks=4)
    verify.set_defaults(do=_verify)

    diff = known.add_parser("diff", help="what would move if all were computed again")
    diff.set_defaults(do=_diff)

    new = known.add_parser("add", help="make a golden of a case")
    new.add_argument("name", metavar="NAME")
    new.add_argument("case", metavar="CASE-LINE")
    new.add_argument("--comment", required=True, metavar="TEXT", help="what is peculiar to it")
    new.add_argument("--hunts", default="", metavar="LIST", help="mutants that it tells apart")
    new.add_argument("--source", default="", metavar="TEXT", help="where it was met")
    new.add_argument("--accept", action="store_true", help="put it in the place of another")
    _reason_option(new)
    new.set_defaults(do=_add)

    shown = known.add_parser("list", help="every golden, and what it is there for")
    shown.set_defaults(do=_list)

    for command in known.choices.values():
        command.add_argument("--store", default="golden", metavar="DIR", help="default: golden")
        if command is not verify:
            json_option(command)


def _reason_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="why what is stored may change its meaning"
    )


def run(options: argparse.Namespace) -> int:
    from harness.golden import BadGolden

    try:
        status: int = options.do(options)
    except BadGolden as error:
        print(f"harness: {' '.join(str(error).splitlines())}", file=sys.stderr)  # noqa: T201
        return DAMAGED
    return status


def _list(options: argparse.Namespace) -> int:
    goldens = _whole(options, _store(options))
    if goldens is None:
        return DAMAGED
    if options.json:
        print_json({"goldens": [_record(golden) for golden in goldens.values()]})
    else:
        from harness.golden.table import show_goldens

        show_goldens(goldens, _console(options))
    return PASSED


def _add(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from harness.golden import BadGolden, Vector, as_files, examine
    from harness.golden.generate import make
    from harness.golden.provenance import commit, fingerprint
    from harness.golden.vector import NAME
    from harness.situations import situations_of

    if not NAME.fullmatch(options.name):
        raise UsageError(f"NAME={options.name}: use a-z, 0-9 and -, at most 60 of them")
    if not options.comment.strip():
        raise UsageError("--comment: say what is peculiar to this case")
    case = replace(parse(options.case), dtype="fp64")
    store = _store(options)
    files = store.files() if store.folder.is_dir() else {}
    goldens: dict[str, Golden] = {}
    if files:
        goldens, damages = examine(files)
        if damages:
            raise BadGolden(str(damages[0]))
    if options.name in goldens and not (options.accept and options.reason):
        raise UsageError(f"NAME={options.name}: is there; replace it with --accept --reason TEXT")
    vector = Vector(
        options.name,
        case,
        options.comment.strip(),
        tuple(key for key in options.hunts.split(",") if key),
        tuple(situations_of(case)),
        options.source,
    )
    goldens[options.name] = make(vector, fingerprint(), commit(store.folder), options.reason)
    store.write(as_files(goldens))
    if options.json:
        print_json(_record(goldens[options.name]))
    else:
        _console(options).print(f"added {options.name}", highlight=False)
    return PASSED


def _generate(options: argparse.Namespace) -> int:
    from harness.golden import as_files, only_vectors
    from harness.golden.generate import make, remake
    from harness.golden.manifest import FILE
    from harness.golden.provenance import commit, fingerprint

    store = _store(options)
    files = store.files()
    made, checked_out = fingerprint(), commit(store.folder)
    if FILE not in files:
        vectors = only_vectors(files)
        goldens = {name: make(vector, made, checked_out) for name, vector in vectors.items()}
        store.write(as_files(goldens))
        return _tell(options, {}, sorted(goldens), [])
    known = _whole(options, store)
    if known is None:
        return DAMAGED
    remade = remake(known, made, checked_out, accept=options.accept, reason=options.reason)
    refused = [name for name in remade.changed if name not in remade.written]
    if remade.written and not refused:
        store.write(as_files(remade.goldens))
    return _tell(options, remade.drifts, [] if refused else remade.written, refused)


def _diff(options: argparse.Namespace) -> int:
    from harness.golden.generate import drifted

    goldens = _whole(options, _store(options))
    if goldens is None:
        return DAMAGED
    drifts = {name: drifted(golden) for name, golden in goldens.items()}
    from harness.compare import Change

    return _tell(
        options, drifts, [], [n for n, d in drifts.items() if d.change is Change.SEMANTIC]
    )


def _tell(
    options: argparse.Namespace, drifts: dict[str, Any], written: list[str], refused: list[str]
) -> int:
    from dataclasses import asdict

    if options.json:
        moved = {name: asdict(found) for name, found in drifts.items()}
        print_json({"drifts": moved, "written": written, "refused": refused})
    else:
        from harness.golden.table import show_drifts

        show_drifts(drifts, written, refused, _console(options))
    return DIVERGED if refused else PASSED


def _verify(options: argparse.Namespace) -> int:
    import time

    from harness.candidates import load
    from harness.golden.generate import unconfirmed
    from harness.golden.table import show_verified
    from harness.golden.verify import Tally, jobs, judged

    started = time.monotonic()
    candidates = options.candidate or ["native-gather", "native-local"]
    sps = read_numbers("--sp", options.sp)
    for candidate in candidates:
        load(candidate)
    goldens = _whole(options, _store(options))
    if goldens is None:
        return DAMAGED
    tally = Tally(goldens=len(goldens))
    with open_pool(options, options.ranks) as pool:
        pool.start()
        # While the ranks are coming up.
        doubted = dict(unconfirmed(goldens))
        for name, comparison in judged(jobs(goldens, candidates, sps, pool.size), pool):
            tally.add(name, comparison)
        tally.look_closer(pool)
    tally.seconds = round(time.monotonic() - started, 3)
    if options.json:
        print_json({**tally.record(), "unconfirmed": doubted})
    else:
        show_verified(tally, doubted, _console(options))
    return DIVERGED if doubted else status_of(tally.verdict.name)


def _whole(options: argparse.Namespace, store: "Store") -> "dict[str, Golden] | None":
    """The goldens; or nothing, where one is damaged, and every damage is told."""
    from harness.golden import examine

    goldens, damages = examine(store.files())
    if not damages:
        return goldens
    if options.json:
        print_json({"damaged": [{"file": each.file, "what": each.what} for each in damages]})
    for damage in damages:
        print(f"harness: {damage}", file=sys.stderr)  # noqa: T201 - a command speaks
    return None


def _record(golden: "Golden") -> dict[str, Any]:
    vector = golden.vector
    return {
        "name": vector.name,
        "case": str(vector.case),
        "comment": vector.comment,
        "hunts": list(vector.hunts),
        "situations": list(vector.situations),
        "source": vector.source,
        "made": golden.stored.made,
        "commit": golden.listed.commit,
    }


def _store(options: argparse.Namespace) -> "Store":
    from harness.golden import Store

    return Store(Path(options.store))


def _console(options: argparse.Namespace) -> "Console":
    from rich.console import Console

    return Console(stderr=options.json)
