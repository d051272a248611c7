"""Puts the fragments of all ranks together into one trace, and lists where they do not fit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from harness.case import Case
from harness.trace.fault import Fault, Kind
from harness.trace.fragment import Fragment, bits
from harness.trace.trace import Entry, Trace, Values, is_of_plain_training, is_required


class MisfitKind(StrEnum):
    """The ways in which fragments of a key can fail to fit together."""

    LOST = "token lost"
    TWICE = "token owned twice"
    SPLIT = "replicas differ"


@dataclass(frozen=True, slots=True)
class Misfit:
    """One misfit of one key, with the tokens or the ranks that it is about."""

    kind: MisfitKind
    key: str
    tokens: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    detail: str = ""


@dataclass(slots=True)
class Assembly:
    """A candidate's trace, its misfits, and how its ranks shared the work."""

    trace: Trace = field(default_factory=Trace)
    misfits: list[Misfit] = field(default_factory=list)
    # By rank, the number of rows of `nll` that it computed, padding included.
    local_rows: tuple[int, ...] = ()
    # By rank, the most tokens that one call of its embedding was given; 0 if unknown.
    embedded: tuple[int, ...] = ()
    # By rank, the number of bytes of activations that it sent to other ranks.
    sent: tuple[int, ...] = ()
    # Keys that ranks emitted and for which they sent no values.
    skipped: tuple[str, ...] = ()
    # Packages that plain torch replaced on the ranks, such as flash-attn without a GPU.
    stood_in: tuple[str, ...] = ()
    # A description of gradients that a rank computed and did not emit; empty if there are none,
    # or if ranks were not asked for it.
    unemitted: str = ""
    # Ranks that computed nothing on their accelerator.
    idle: tuple[int, ...] = ()
    # The first collective on which ranks disagree, if they do although none of them hung.
    out_of_step: str = ""

    @property
    def silent(self) -> bool:
        """Whether no rank sent anything to another."""
        return not any(self.sent)


def assemble(case: Case, ranks: Sequence[Sequence[Fragment]]) -> Assembly | Fault:
    """Return the trace with its misfits; a `Fault` if a fragment is missing or malformed."""
    assembly = Assembly()
    keys = list(dict.fromkeys(fragment.key for fragments in ranks for fragment in fragments))
    for key in keys:
        pieces = [
            (rank, fragment)
            for rank, fragments in enumerate(ranks)
            for fragment in fragments
            if fragment.key == key
        ]
        by_token = {fragment.tokens is not None for _, fragment in pieces}
        if len(by_token) == 2:
            return _fragment_fault(key, "some ranks gave tokens and some did not")
        fault = (
            _join_rows(assembly, case, key, pieces)
            if by_token == {True}
            else _compare_copies(assembly, key, pieces, len(ranks))
        )
        if fault:
            return fault
    assembly.local_rows = tuple(
        sum(len(f.tokens) + f.pads for f in fragments if f.key == "nll" and f.tokens is not None)
        for fragments in ranks
    )
    return assembly


def _join_rows(
    assembly: Assembly, case: Case, key: str, pieces: list[tuple[int, Fragment]]
) -> Fault | None:
    """Add the rows of one key to the trace, in token order; add misfits, or return a fault."""
    values, numbers, owners = [], [], []
    for rank, piece in pieces:
        if piece.values is None or piece.tokens is None:
            return _fragment_fault(key, "rows came without values", rank)
        if piece.tokens.size and not 0 <= piece.tokens.min() <= piece.tokens.max() < case.tokens:
            return _fragment_fault(key, f"a token number outside 0..{case.tokens - 1}", rank)
        shape = piece.values.shape[1:]
        if shape != pieces[0][1].values.shape[1:]:  # type: ignore[union-attr]
            return _fragment_fault(key, f"rows of shape {shape} beside others", rank)
        values.append(piece.values)
        numbers.append(piece.tokens)
        owners.append(np.full(len(piece.tokens), rank))
    tokens, owner = np.concatenate(numbers), np.concatenate(owners)
    order = np.argsort(tokens, kind="stable")
    tokens, owner, rows = tokens[order], owner[order], np.concatenate(values)[order]
    repeats = np.flatnonzero(tokens[1:] == tokens[:-1]) + 1
    # Metrics may be gathered before they are emitted. Then all ranks emit equal rows.
    is_metric = not is_required(key) and not is_of_plain_training(key)
    differ = bits(rows[repeats]).tobytes() != bits(rows[repeats - 1]).tobytes()
    if repeats.size and (differ or not is_metric):
        repeated = tuple(int(t) for t in np.unique(tokens[repeats]))
        holders = tuple(int(r) for r in owner[tokens == repeated[0]])
        assembly.misfits.append(Misfit(MisfitKind.TWICE, key, repeated, holders))
    tokens, owner, rows = (np.delete(x, repeats, 0) for x in (tokens, owner, rows))
    if len(tokens) < case.tokens:
        lost = np.setdiff1d(np.arange(case.tokens), tokens)
        assembly.misfits.append(Misfit(MisfitKind.LOST, key, tuple(int(t) for t in lost)))
    assembly.trace.put(key, Entry(rows, tokens, owner))
    return None


def _compare_copies(
    assembly: Assembly, key: str, pieces: list[tuple[int, Fragment]], ranks: int
) -> Fault | None:
    """Add a replica to the trace; add a misfit if copies differ, or return a fault."""
    holders = [rank for rank, _ in pieces]
    if is_required(key) and sorted(holders) != list(range(ranks)):
        missing = sorted(set(range(ranks)) - set(holders))
        if missing:
            return _fragment_fault(key, "required, and never emitted", missing[0])
        return _fragment_fault(key, "emitted more than once on a rank")
    values = next((piece.values for _, piece in pieces if piece.values is not None), None)
    if values is None and 0 in holders:
        return _fragment_fault(key, "no rank sent the values")
    copies = {r: [p for rank, p in pieces if rank == r] for r in holders}
    first = copies[holders[0]]
    different = [r for r in copies if [p.digest for p in copies[r]] != [p.digest for p in first]]
    if different:
        detail = ""
        for one, other in zip(first, copies[different[0]], strict=False):
            if one.digest != other.digest and one.values is not None and other.values is not None:
                detail = _first_difference(one.values, other.values, different[0])
                break
        assembly.misfits.append(Misfit(MisfitKind.SPLIT, key, (), tuple(different), detail))
    if values is None:
        assembly.skipped += (key,)
    else:
        assembly.trace.put(key, Entry(values))
    return None


def _first_difference(first: Values, other: Values, rank: int) -> str:
    if first.shape != other.shape or first.dtype != other.dtype:
        return f"rank 0 holds {first.dtype} {first.shape}, rank {rank} {other.dtype} {other.shape}"
    # Bits are compared and not values, so that two NaNs agree.
    unequal = bits(first).view(f"V{first.itemsize}") != bits(other).view(f"V{other.itemsize}")
    index = tuple(int(i) for i in np.argwhere(unequal.reshape(first.shape))[0])
    where = f"at {list(index)} " if index else ""
    return f"{where}rank 0 holds {first[index]!s}, rank {rank} {other[index]!s}"


def _fragment_fault(key: str, problem: str, rank: int | None = None) -> Fault:
    where = "" if rank is None else f"rank {rank}: "
    summary = f"{where}key {key!r}: {problem}"
    return Fault(kind=Kind.FRAGMENT, summary=summary, rank=rank, last_key=key)
