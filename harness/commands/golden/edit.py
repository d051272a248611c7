"""`golden add`, `generate` and `diff`: compute goldens, and store them or show what changed."""

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from harness.against import ITSELF, PLAIN
from harness.case import parse
from harness.commands.golden import recorded
from harness.commands.golden.options import Add, Generate, OwnStep
from harness.commands.golden.own import adopt, make_own, own_against, recompute_own
from harness.commands.golden.store import (
    DAMAGED,
    console_for,
    golden_record,
    open_store,
    read_oracles,
)
from harness.commands.options import DIVERGED, PASSED, Output, print_json
from harness.commands.ranks import open_pool
from harness.commands.values import UsageError, as_text

if TYPE_CHECKING:
    from harness.golden import Golden, Vector
    from harness.golden.store import Files


Name = Annotated[str, Parameter(name="NAME", help="of the golden")]
Line = Annotated[str, Parameter(name="CASE-LINE", help="what it is made of")]


def add(name: Name, line: Line, /, *, options: Add) -> int:
    """Make a golden from a case."""
    from harness.golden import BadGolden, examine, store_files
    from harness.golden.generate import make
    from harness.golden.provenance import commit, fingerprint

    vector = _make_vector(name, line, options)
    store = open_store(options)

    def read_others(files: "Files") -> "dict[str, Golden]":
        goldens, damages = examine(files) if files else ({}, [])
        if damages:
            raise BadGolden(str(damages[0]))
        if name in goldens and not (options.accept and options.reason):
            raise UsageError(f"NAME={name}: is there; replace it with --accept --reason TEXT")
        return goldens

    # Checked before the numbers are computed, and again when they are stored: another process may
    # add a golden meanwhile.
    read_others(store.files() if store.folder.is_dir() else {})
    if options.candidate:
        ranks = options.ranks or vector.case.ranks
        asked = options.against or PLAIN
        with open_pool(options, ranks, [options.candidate]) as pool:
            against = own_against(options.candidate, pool, asked)
            golden = make_own(
                vector, options.candidate, against, pool, options.store, options.reason
            )
    else:
        golden = make(vector, fingerprint(), commit(store.folder), options.reason)
    store.change(lambda files: store_files({**read_others(files), name: golden}))
    if options.json:
        print_json(golden_record(golden))
    else:
        console_for(options).print(f"added {name}", highlight=False)
    return PASSED


def _make_vector(name: str, line: str, options: Add) -> "Vector":
    """Return the golden without its numbers; raise `UsageError` if something about it is bad."""
    from difflib import get_close_matches

    from harness.candidates.own.mutants import NATIVE
    from harness.generation.situations import situations_of
    from harness.golden import Vector
    from harness.golden.vector import NAME

    if not NAME.fullmatch(name):
        raise UsageError(f"NAME={name}: use a-z, 0-9 and -, at most 60 of them")
    if not options.comment.strip():
        raise UsageError("--comment: say what is peculiar to this case")
    if options.against != PLAIN and not options.candidate:
        raise UsageError(f"--against={options.against}: name the step with --candidate")
    hunts = options.hunts
    if options.candidate and hunts:
        raise UsageError(f"--hunts={as_text(hunts)}: tells what differs from plain training only")
    for key in hunts:
        if key not in NATIVE:
            near = ", ".join(get_close_matches(key, NATIVE, 3, 0.0))
            raise UsageError(f"--hunts={key}: there is no such mutant; near: {near}")
    case = parse(line)
    if case.dtype != "fp64":
        raise UsageError(
            f"dtype={case.dtype}: a golden holds what is computed in fp64; leave it out, and run "
            f"candidates with `golden verify --dtype {case.dtype}`"
        )
    comment, situations = options.comment.strip(), tuple(situations_of(case))
    return Vector(name, case, comment, hunts, situations, options.source)


def generate(*, options: Generate = Generate()) -> int:
    """Compute all goldens again; keep stored bits that are within drift."""
    from harness.golden import read_vectors
    from harness.golden.contents import require_unchanged
    from harness.golden.generate import make, remake
    from harness.golden.manifest import FILE
    from harness.golden.provenance import commit, fingerprint

    if options.against == ITSELF and not options.out:
        raise UsageError("--against=self: goes with --out; make such a golden with `golden add`")
    store = open_store(options)
    files = store.files()
    made, checked_out = fingerprint(), commit(store.folder)
    if FILE not in files:
        vectors = read_vectors(files)
        goldens = {name: make(vector, made, checked_out) for name, vector in vectors.items()}
        store.change(require_unchanged(files, goldens))
        return _answer(options, {}, sorted(goldens), [])
    known = read_oracles(options, files)
    if known is None:
        return DAMAGED
    if options.out:
        return recorded.record(options, options.out, known)
    known = adopt(options, known)
    remade = remake(
        known,
        made,
        checked_out,
        own=recompute_own(options, known, options.reason),
        accept=options.accept,
        reason=options.reason,
    )
    refused = [name for name in remade.changed if name not in remade.written]
    if remade.written and not refused:
        store.change(require_unchanged(files, remade.goldens))
    return _answer(options, remade.drifts, [] if refused else remade.written, refused)


def diff(*, options: OwnStep = OwnStep()) -> int:
    """Show what `generate` would change."""
    from harness.compare import Change
    from harness.golden.generate import measure_drift

    if options.against == ITSELF:
        raise UsageError(
            "--against=self: goldens say themselves what their candidate is compared with; "
            "leave it out"
        )
    goldens = read_oracles(options, open_store(options).files())
    if goldens is None:
        return DAMAGED
    goldens = adopt(options, goldens)
    own = recompute_own(options, goldens)
    drifts = {name: measure_drift(golden, own.get(name)) for name, golden in goldens.items()}
    changed = [name for name, drift in drifts.items() if drift.change is Change.SEMANTIC]
    return _answer(options, drifts, [], changed)


def _answer(
    options: Output, drifts: dict[str, Any], written: list[str], refused: list[str]
) -> int:
    """Print how far the goldens drifted, which were written, and which may not be."""
    from dataclasses import asdict

    if options.json:
        moved = {name: asdict(drift) for name, drift in drifts.items()}
        print_json({"drifts": moved, "written": written, "refused": refused})
    else:
        from harness.golden.table import show_drifts

        show_drifts(drifts, written, refused, console_for(options))
    return DIVERGED if refused else PASSED
