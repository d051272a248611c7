"""Numbers that come out of an exchange in another order.

An exchange turns (ranks r, their tokens l, blocks of heads b, heads of a block m) round. Each way
of reading these four in another order, over all ranks, on one or within a block, is a reshape
where dims should have been moved, or the other way round.

Legend: T tokens of a stream with its padding, N heads, H head dim.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations

import torch
from torch import Tensor

from harness.diagnosis.forward import Heads, Pass, Variants

AXES = "rlbm"
NAME = "head-order"


def reshapes(plain: Pass) -> Variants:
    """Output, or queries, keys and values, in another order."""
    sp, heads, kv_heads = plain.case.sp, plain.case.heads, plain.case.kv_heads
    of_queries = dict(orders(sp, plain.share, heads))
    of_keys = dict(orders(sp, plain.share, max(kv_heads, sp)))
    for how, order in of_queries.items():
        yield NAME, f"of the output, {how}", replace(plain, after=_by(order))
        yield NAME, f"of queries, {how}", replace(plain, before=_each(_by(order)))
        same = of_keys.get(how)
        if same is None:
            continue
        repeat = max(1, sp // kv_heads)
        keys = _of_keys(same, repeat)
        yield NAME, f"of keys and values, {how}", replace(plain, before=_each(None, keys, keys))
        yield (
            NAME,
            f"of queries, keys and values, {how}",
            replace(plain, before=_each(_by(order), keys, keys)),
        )


def dealt(plain: Pass) -> Variants:
    """Pieces of a stream put together as if a rank had one from either end."""
    sp, length = plain.case.sp, len(plain.ids_T)
    last = 2 * sp - 1
    order = [piece for peer in range(sp) for piece in (peer, last - peer)]
    pieces = torch.arange(length).tensor_split(last + 1)
    zigzag_T = from_either_end(length, sp)
    back_T = torch.cat([pieces[order.index(piece)] for piece in range(last + 1)])
    for how, at_T in (
        ("dealt from either end", zigzag_T),
        ("put back as if it had been dealt from either end", back_T),
    ):
        moved = _tokens(at_T)
        yield NAME, f"of the output, {how}", replace(plain, after=moved)
        yield NAME, f"of queries, {how}", replace(plain, before=_each(moved))
        yield NAME, f"of keys and values, {how}", replace(plain, before=_each(None, moved, moved))
    for peer in range(1, sp):
        moved = _tokens(torch.arange(length).roll(peer * plain.share))
        yield NAME, f"of the output, {peer} shards on", replace(plain, after=moved)
        yield (
            NAME,
            f"of keys and values, {peer} shards on",
            replace(plain, before=_each(None, moved, moved)),
        )


def from_either_end(length: int, ranks: int) -> Tensor:
    """Which places the first rank has, then the second, and so on."""
    pieces = torch.arange(length).tensor_split(2 * ranks)
    return torch.cat([pieces[at] for rank in range(ranks) for at in (rank, -1 - rank)])


def together(plain: Pass) -> Variants:
    """Several tensors in one exchange whose blocks are cut without regard to which is which."""
    sp, heads, kv_heads = plain.case.sp, plain.case.heads, plain.case.kv_heads
    if sp == 1:
        return
    repeat = max(1, sp // kv_heads)

    def mixed(given: Heads) -> Heads:
        q_TNH, k_TKH, v_TKH = given[0], *(x.repeat_interleave(repeat, 1) for x in given[1:])
        blocks = torch.cat((q_TNH, k_TKH, v_TKH), 1).unflatten(1, (sp, -1))
        sizes = [x.shape[1] // sp for x in (q_TNH, k_TKH, v_TKH)]
        q, k, v = (part.flatten(1, 2) for part in blocks.split(sizes, 2))
        return q, k, v

    kv_of_N = plain.kv_of_N * repeat + torch.arange(heads) // (heads // sp) % repeat
    yield (
        NAME,
        "queries, keys and values are cut as one tensor",
        replace(plain, before=mixed, kv_of_N=kv_of_N),
    )


def orders(sp: int, share: int, heads: int) -> Iterator[tuple[str, Tensor]]:
    """What stands at each (token, head), by its flat index, in every order but the right one."""
    if sp == 1 or heads % sp:
        return
    sizes = {"r": sp, "l": share, "b": sp, "m": heads // sp}
    at = torch.arange(sp * share * heads).view(*sizes.values())
    ways: dict[str, Tensor] = {}
    for kept in ("", "r", "b", "rb"):
        free = [axis for axis in AXES if axis not in kept]
        for order in permutations(free):
            whole = (*kept, *order)
            read = at.permute([AXES.index(axis) for axis in whole])
            back = [(*kept, *free).index(axis) for axis in AXES]
            shape = [sizes[axis] for axis in (*kept, *free)]
            way = read.reshape(shape).permute(back).flatten()
            ways[_said(kept, order)] = way
            ways[f"{_said(kept, order)}, undone"] = way.argsort()
    for peer in range(1, sp):
        ways[f"{peer} blocks of heads on"] = at.roll(peer, 2).flatten()
    swapped = [1, 0, *range(2, sp)]
    ways["the first two blocks of heads are swapped"] = at[:, :, swapped].flatten()
    ways["heads in reverse"] = at.flip(2, 3).flatten()
    right = at.flatten()
    for how, way in ways.items():
        # Where a size is one, several are the same: keys need those of queries by name.
        if not torch.equal(way, right):
            yield how, way


def _said(kept: str, order: tuple[str, ...]) -> str:
    where = {"": "over all ranks", "r": "on each rank", "b": "in each block", "rb": "in both"}
    return f"{where[kept]} {''.join(order)}"


def _by(order: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x_TNH: x_TNH.flatten(0, 1)[order].view(x_TNH.shape)


def _of_keys(order: Tensor, repeat: int) -> Callable[[Tensor], Tensor]:
    """As they are exchanged: each repeated until every rank has one."""
    return lambda x_TKH: _by(order)(x_TKH.repeat_interleave(repeat, 1))[:, ::repeat]


def _tokens(at_T: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x_TNH: x_TNH[at_T]


def _each(*ways: Callable[[Tensor], Tensor] | None) -> Callable[[Heads], Heads]:
    def before(given: Heads) -> Heads:
        padded = (*ways, *[None] * (3 - len(ways)))
        q, k, v = (x if way is None else way(x) for way, x in zip(padded, given, strict=True))
        return q, k, v

    return before


ALL = (reshapes, dealt, together)
