"""Ids and positions that are not those of the tokens.

Legend: T tokens of a stream with its padding.
"""

from dataclasses import replace

import torch
from torch import Tensor

from harness.diagnosis.forward import Pass, Variants

# As models of images and video count them.
AXES = 3


def restarted(plain: Pass) -> Variants:
    """Positions that begin again with a shard."""
    at_T = _in_shard(plain)
    yield (
        "positions-restarted",
        "positions are counted from the start of the shard",
        _at(plain, at_T),
    )
    yield (
        "positions-restarted",
        "positions are counted from the start of the shard or of the row",
        _at(plain, torch.minimum(at_T, plain.positions_T)),
    )
    for widest, of in _widths(plain):
        share = -(-widest // plain.case.sp)
        for column_T, padded in (
            (plain.positions_T, "on the right"),
            (_columns(plain, share * plain.case.sp), "as its rows say"),
        ):
            yield (
                "positions-restarted",
                f"positions are counted from the shard's first column of {of} padded {padded}",
                _at(plain, column_T % share),
            )


def run_on(plain: Pass) -> Variants:
    """Positions that do not begin again with a row."""
    at_T = torch.arange(len(plain.ids_T))
    yield "positions-run-on", "positions are counted over the stream", _at(plain, at_T)


def other_positions(plain: Pass) -> Variants:
    """Positions of other tokens, or of other places."""
    name, case, spans = "positions-wrong", plain.case, plain.stream.spans
    table_T = plain.positions_T.clone()
    for span in spans:
        table_T[span.start : span.stop] = plain.positions_T[: span.stop - span.start]
    yield (
        name,
        "every row reads the stream's table of positions from its start",
        _at(plain, table_T),
    )
    for widest, of in _widths(plain):
        yield (
            name,
            f"positions are columns of the padded batch, as wide as {of}",
            _at(plain, _columns(plain, widest)),
        )
    if case.sp == 1:
        return
    size = plain.share
    for by in range(1, case.sp):
        yield (
            name,
            f"positions are those of the shard {by} further on",
            _at(plain, plain.positions_T.roll(-by * size)),
        )
    for peer in range(case.sp):
        of_one_T = plain.positions_T[peer * size :][:size].repeat(case.sp)
        yield name, f"positions are those of shard {peer} on every rank", _at(plain, of_one_T)
    by_world_T = plain.positions_T[-size:].repeat(case.sp)
    late = _at(plain, by_world_T) if plain.stream.replica else plain
    yield name, "positions are cut by the rank in the world, not in the group", late
    at_T = torch.arange(len(plain.ids_T))
    in_line_T = (at_T // size * AXES * size + at_T % size) % len(plain.ids_T)
    yield (
        name,
        f"{AXES} axes of positions are cut as if they were one",
        _at(plain, plain.positions_T[in_line_T]),
    )
    yield name, "every token stands at position 0", _at(plain, torch.zeros_like(plain.positions_T))


def other_ids(plain: Pass) -> Variants:
    """Ids of other tokens, or of none."""
    name, case = "input-replaced", plain.case
    yield (
        name,
        "the padded batch is read column by column",
        _read(plain, plain.ids_T[columns(plain)]),
    )
    for by in range(1, case.sp):
        yield (
            name,
            f"ids are those of the shard {by} further on",
            _read(plain, plain.ids_T.roll(-by * plain.share)),
        )
    bits = [bit == "1" for row in case.rows for bit in row.mask]
    target_T = torch.tensor(bits)[plain.numbers_T.clamp(min=0)] | plain.is_padding
    for fill in sorted({0, case.pad_id}):
        said = "id 0" if fill == 0 else "the pad id"
        yield (
            name,
            f"{said} is read for every token that is no target",
            _read(plain, plain.ids_T.where(target_T, fill)),
        )


def columns(plain: Pass) -> Tensor:
    """Which token of the stream comes at each place if the padded batch is read by columns."""
    spans, rows = plain.stream.spans, plain.case.rows
    width = max(span.stop - span.start for span in spans)
    places = []
    for span in spans:
        length = span.stop - span.start
        first = width - length if rows[span.row].side == "left" else 0
        places += [(first + at, span.row, span.start + at) for at in range(length)]
    order = [at for _, _, at in sorted(places)]
    return torch.tensor([*order, *range(len(order), len(plain.ids_T))])


def _widths(plain: Pass) -> tuple[tuple[int, str], ...]:
    """How wide a padded batch may be."""
    return (
        (max(span.stop - span.start for span in plain.stream.spans), "its micro-batch"),
        (max(map(len, plain.case.rows)), "the batch"),
    )


def _columns(plain: Pass, width: int) -> Tensor:
    """The column of each token in a padded batch of this width."""
    column_T = plain.positions_T.clone()
    for span in plain.stream.spans:
        if plain.case.rows[span.row].side == "left":
            column_T[span.start : span.stop] += width - (span.stop - span.start)
    return column_T


def _in_shard(plain: Pass) -> Tensor:
    """Each token's place among those of its rank."""
    at_T = torch.zeros_like(plain.positions_T)
    for peer in range(plain.case.sp):
        mine_T = plain.peer_T == peer
        at_T[mine_T] = torch.arange(int(mine_T.sum()))
    return at_T


def _at(plain: Pass, positions_T: Tensor) -> Pass:
    return replace(plain, positions_T=positions_T)


def _read(plain: Pass, ids_T: Tensor) -> Pass:
    return replace(plain, ids_T=ids_T)


ALL = (restarted, run_on, other_positions, other_ids)
