"""Fragments of all ranks become one trace, or misfits say why they do not fit together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from harness.case import Case
from harness.trace.fault import Fault, Kind
from harness.trace.fragment import Fragment, bits
from harness.trace.trace import Entry, Trace, Values, is_of_plain_training, is_required


class MisfitKind(StrEnum):
    """How fragments can fail to make one whole."""

    LOST = "token lost"
    TWICE = "token owned twice"
    SPLIT = "replicas differ"


@dataclass(frozen=True, slots=True)
class Misfit:
    """One misfit: which key, which tokens or which ranks."""

    kind: MisfitKind
    key: str
    tokens: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    detail: str = ""


@dataclass(slots=True)
class Assembly:
    """A candidate's trace, what did not fit, and how the work was seen to be spread."""

    trace: Trace = field(default_factory=Trace)
    misfits: list[Misfit] = field(default_factory=list)
    # Per rank, the rows of `nll` it computed, padding included.
    local_rows: tuple[int, ...] = ()
    # Per rank, the bytes of activations that it sent to others.
    sent: tuple[int, ...] = ()
    # Keys of what was emitted, and of which no values came.
    skipped: tuple[str, ...] = ()
    # Packages that ranks had in plain torch instead.
    stood_in: tuple[str, ...] = ()
    # What learned on a rank and was not emitted, where that was asked.
    unemitted: str = ""
    # Ranks on a device on which they computed nothing.
    idle: tuple[int, ...] = ()
    # Where ranks part in what they entered, though none of them hung; or nothing.
    out_of_step: str = ""

    @property
    def silent(self) -> bool:
        """Whether no rank sent anything to another."""
        return not any(self.sent)


def assemble(case: Case, ranks: Sequence[Sequence[Fragment]]) -> Assembly | Fault:
    """The candidate's trace; a `Fault` where a fragment is missing or malformed."""
    assembly = Assembly()
    keys = list(dict.fromkeys(fragment.key for fragments in ranks for fragment in fragments))
    for key in keys:
        pieces = [
            (rank, fragment)
            for rank, fragments in enumerate(ranks)
            for fragment in fragments
            if fragment.key == key
        ]
        owned = {fragment.tokens is not None for _, fragment in pieces}
        if len(owned) == 2:
            return _bad(key, "some ranks gave tokens and some did not")
        fault = (
            _whole(assembly, case, key, pieces)
            if owned == {True}
            else _replica(assembly, key, pieces, len(ranks))
        )
        if fault:
            return fault
    assembly.local_rows = tuple(
        sum(len(f.tokens) + f.pads for f in fragments if f.key == "nll" and f.tokens is not None)
        for fragments in ranks
    )
    return assembly


def _whole(
    assembly: Assembly, case: Case, key: str, pieces: list[tuple[int, Fragment]]
) -> Fault | None:
    values, numbers, owners = [], [], []
    for rank, piece in pieces:
        if piece.values is None or piece.tokens is None:
            return _bad(key, "rows came without values", rank)
        if piece.tokens.size and not 0 <= piece.tokens.min() <= piece.tokens.max() < case.tokens:
            return _bad(key, f"a token number outside 0..{case.tokens - 1}", rank)
        if piece.values.shape[1:] != pieces[0][1].values.shape[1:]:  # type: ignore[union-attr]
            return _bad(key, f"rows of shape {piece.values.shape[1:]} beside others", rank)
        values.append(piece.values)
        numbers.append(piece.tokens)
        owners.append(np.full(len(piece.tokens), rank))
    tokens, owner = np.concatenate(numbers), np.concatenate(owners)
    order = np.argsort(tokens, kind="stable")
    tokens, owner, rows = tokens[order], owner[order], np.concatenate(values)[order]
    again = np.flatnonzero(tokens[1:] == tokens[:-1]) + 1
    # What nobody knows may have been gathered, and then it is the same on every rank.
    is_known = is_required(key) or is_of_plain_training(key)
    if again.size and (is_known or bits(rows[again]).tobytes() != bits(rows[again - 1]).tobytes()):
        twice = tuple(int(t) for t in np.unique(tokens[again]))
        holders = tuple(int(r) for r in owner[tokens == twice[0]])
        assembly.misfits.append(Misfit(MisfitKind.TWICE, key, twice, holders))
    tokens, owner, rows = (np.delete(x, again, 0) for x in (tokens, owner, rows))
    if len(tokens) < case.tokens:
        lost = np.setdiff1d(np.arange(case.tokens), tokens)
        assembly.misfits.append(Misfit(MisfitKind.LOST, key, tuple(int(t) for t in lost)))
    assembly.trace.put(key, Entry(rows, tokens, owner))
    return None


def _replica(
    assembly: Assembly, key: str, pieces: list[tuple[int, Fragment]], ranks: int
) -> Fault | None:
    holders = [rank for rank, _ in pieces]
    if is_required(key) and sorted(holders) != list(range(ranks)):
        silent = sorted(set(range(ranks)) - set(holders))
        if silent:
            return _bad(key, "required, and never emitted", silent[0])
        return _bad(key, "emitted more than once on a rank")
    values = next((piece.values for _, piece in pieces if piece.values is not None), None)
    if values is None and 0 in holders:
        return _bad(key, "no rank sent the values")
    copies = {r: [p for rank, p in pieces if rank == r] for r in holders}
    mine = copies[holders[0]]
    different = [r for r in copies if [p.digest for p in copies[r]] != [p.digest for p in mine]]
    if different:
        detail = ""
        for one, other in zip(mine, copies[different[0]], strict=False):
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
    # Bits, not values: two NaNs agree.
    unequal = bits(first).view(f"V{first.itemsize}") != bits(other).view(f"V{other.itemsize}")
    index = tuple(int(i) for i in np.argwhere(unequal.reshape(first.shape))[0])
    where = f"at {list(index)} " if index else ""
    return f"{where}rank 0 holds {first[index]!s}, rank {rank} {other[index]!s}"


def _bad(key: str, what: str, rank: int | None = None) -> Fault:
    who = "" if rank is None else f"rank {rank}: "
    return Fault(kind=Kind.FRAGMENT, summary=f"{who}key {key!r}: {what}", rank=rank, last_key=key)
