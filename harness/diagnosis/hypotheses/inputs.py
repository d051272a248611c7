"""Ids and positions that are not those of the tokens.

Legend: T tokens of a stream with its padding.
"""

from dataclasses import replace

import torch
from torch import Tensor

from harness.diagnosis.forward import Pass, Variants

# Models of images and video count positions along this many axes.
AXES = 3


def restarted(plain: Pass) -> Variants:
    """Yield passes in which positions restart with a shard."""
    at_T = _places_in_shard(plain)
    yield (
        "positions-restarted",
        "positions are counted from the start of the shard",
        _with_positions(plain, at_T),
    )
    yield (
        "positions-restarted",
        "positions are counted from the start of the shard or of the row",
        _with_positions(plain, torch.minimum(at_T, plain.positions_T)),
    )
    for widest, of in _batch_widths(plain):
        columns_per_shard = -(-widest // plain.case.sp)
        for column_T, padded in (
            (plain.positions_T, "on the right"),
            (_columns(plain, columns_per_shard * plain.case.sp), "as its rows say"),
        ):
            yield (
                "positions-restarted",
                f"positions are counted from the shard's first column of {of} padded {padded}",
                _with_positions(plain, column_T % columns_per_shard),
            )


def run_on(plain: Pass) -> Variants:
    """Yield a pass in which positions do not restart with a row."""
    at_T = torch.arange(len(plain.ids_T))
    yield (
        "positions-run-on",
        "positions are counted over the stream",
        _with_positions(plain, at_T),
    )


def other_positions(plain: Pass) -> Variants:
    """Yield passes with the positions of other tokens, or of other places."""
    name, case, spans = "positions-wrong", plain.case, plain.stream.spans
    table_T = plain.positions_T.clone()
    for span in spans:
        table_T[span.start : span.stop] = plain.positions_T[: span.stop - span.start]
    yield (
        name,
        "every row reads the stream's table of positions from its start",
        _with_positions(plain, table_T),
    )
    for widest, of in _batch_widths(plain):
        yield (
            name,
            f"positions are columns of the padded batch, as wide as {of}",
            _with_positions(plain, _columns(plain, widest)),
        )
    if case.sp == 1:
        return
    size = plain.shard_length
    for by in range(1, case.sp):
        yield (
            name,
            f"positions are those of the shard {by} further on",
            _with_positions(plain, plain.positions_T.roll(-by * size)),
        )
    for peer in range(case.sp):
        of_one_T = plain.positions_T[peer * size :][:size].repeat(case.sp)
        yield (
            name,
            f"positions are those of shard {peer} on every rank",
            _with_positions(plain, of_one_T),
        )
    # Beyond the first replica, all ranks get the positions of the last shard.
    last_T = plain.positions_T[-size:].repeat(case.sp)
    by_world_rank = _with_positions(plain, last_T) if plain.stream.replica else plain
    yield name, "positions are cut by the rank in the world, not in the group", by_world_rank
    at_T = torch.arange(len(plain.ids_T))
    in_line_T = (at_T // size * AXES * size + at_T % size) % len(plain.ids_T)
    yield (
        name,
        f"{AXES} axes of positions are cut as if they were one",
        _with_positions(plain, plain.positions_T[in_line_T]),
    )
    yield (
        name,
        "every token stands at position 0",
        _with_positions(plain, torch.zeros_like(plain.positions_T)),
    )


def other_ids(plain: Pass) -> Variants:
    """Yield passes with the ids of other tokens, or of none."""
    name, case = "input-replaced", plain.case
    yield (
        name,
        "the padded batch is read column by column",
        _with_ids(plain, plain.ids_T[column_order(plain)]),
    )
    for by in range(1, case.sp):
        yield (
            name,
            f"ids are those of the shard {by} further on",
            _with_ids(plain, plain.ids_T.roll(-by * plain.shard_length)),
        )
    bits = [bit == "1" for row in case.rows for bit in row.mask]
    target_T = torch.tensor(bits)[plain.numbers_T.clamp(min=0)] | plain.is_padding
    for fill in sorted({0, case.pad_id}):
        filler = "id 0" if fill == 0 else "the pad id"
        yield (
            name,
            f"{filler} is read for every token that is no target",
            _with_ids(plain, plain.ids_T.where(target_T, fill)),
        )


def column_order(plain: Pass) -> Tensor:
    """Return the places of a stream in the order in which the columns of its batch hold them."""
    spans, rows = plain.stream.spans, plain.case.rows
    width = max(span.stop - span.start for span in spans)
    places = []
    for span in spans:
        length = span.stop - span.start
        first = width - length if rows[span.row].side == "left" else 0
        places += [(first + at, span.row, span.start + at) for at in range(length)]
    order = [at for _, _, at in sorted(places)]
    return torch.tensor([*order, *range(len(order), len(plain.ids_T))])


def _batch_widths(plain: Pass) -> tuple[tuple[int, str], ...]:
    """Return the widths that a padded batch may have."""
    return (
        (max(span.stop - span.start for span in plain.stream.spans), "its micro-batch"),
        (max(map(len, plain.case.rows)), "the batch"),
    )


def _columns(plain: Pass, width: int) -> Tensor:
    """Return the column of each token in a padded batch of this width."""
    column_T = plain.positions_T.clone()
    for span in plain.stream.spans:
        if plain.case.rows[span.row].side == "left":
            column_T[span.start : span.stop] += width - (span.stop - span.start)
    return column_T


def _places_in_shard(plain: Pass) -> Tensor:
    """Return the place of each token among those of its rank."""
    at_T = torch.zeros_like(plain.positions_T)
    for peer in range(plain.case.sp):
        on_peer_T = plain.peer_T == peer
        at_T[on_peer_T] = torch.arange(int(on_peer_T.sum()))
    return at_T


def _with_positions(plain: Pass, positions_T: Tensor) -> Pass:
    return replace(plain, positions_T=positions_T)


def _with_ids(plain: Pass, ids_T: Tensor) -> Pass:
    return replace(plain, ids_T=ids_T)


ALL = (restarted, run_on, other_positions, other_ids)
