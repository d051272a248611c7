"""Numbers that come out of an exchange in another order.

An exchange permutes four dims: ranks r, their tokens l, blocks of heads b, heads of a block m. A
reshape in the place of a permute, or the reverse, reads these four in another order: over all
ranks, on one rank, or within a block. Each such order is a variant.

Legend: T tokens of a stream with its padding, N heads, K kv heads, H head dim.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations

import torch
from torch import Tensor

from harness.diagnosis.forward import QKV, Pass, Variants

AXES = "rlbm"
NAME = "head-order"


def reshapes(plain: Pass) -> Variants:
    """Yield passes with the output, or queries, keys and values, in another order."""
    sp, heads, kv_heads = plain.case.sp, plain.case.heads, plain.case.kv_heads
    of_queries = dict(orders(sp, plain.shard_length, heads))
    of_keys = dict(orders(sp, plain.shard_length, max(kv_heads, sp)))
    for how, order in of_queries.items():
        reorder = _reorder(order)
        yield NAME, f"of the output, {how}", replace(plain, change_output=reorder)
        yield NAME, f"of queries, {how}", replace(plain, change_qkv=_change_each(reorder))
        key_order = of_keys.get(how)
        if key_order is None:
            continue
        reorder_keys = _reorder_keys(key_order, max(1, sp // kv_heads))
        yield (
            NAME,
            f"of keys and values, {how}",
            replace(plain, change_qkv=_change_each(None, reorder_keys, reorder_keys)),
        )
        yield (
            NAME,
            f"of queries, keys and values, {how}",
            replace(plain, change_qkv=_change_each(reorder, reorder_keys, reorder_keys)),
        )


def dealt(plain: Pass) -> Variants:
    """Yield passes whose stream is put together as if each rank had a piece from either end."""
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
        take = _take_tokens(at_T)
        yield NAME, f"of the output, {how}", replace(plain, change_output=take)
        yield NAME, f"of queries, {how}", replace(plain, change_qkv=_change_each(take))
        yield (
            NAME,
            f"of keys and values, {how}",
            replace(plain, change_qkv=_change_each(None, take, take)),
        )
    for peer in range(1, sp):
        take = _take_tokens(torch.arange(length).roll(peer * plain.shard_length))
        yield NAME, f"of the output, {peer} shards on", replace(plain, change_output=take)
        yield (
            NAME,
            f"of keys and values, {peer} shards on",
            replace(plain, change_qkv=_change_each(None, take, take)),
        )


def from_either_end(length: int, ranks: int) -> Tensor:
    """Return the places of the first rank, then of the second, and so on, dealt in zigzag."""
    pieces = torch.arange(length).tensor_split(2 * ranks)
    return torch.cat([pieces[at] for rank in range(ranks) for at in (rank, -1 - rank)])


def cut_as_one(plain: Pass) -> Variants:
    """Yield a pass in which one exchange cuts queries, keys and values as if they were one."""
    sp, heads, kv_heads = plain.case.sp, plain.case.heads, plain.case.kv_heads
    if sp == 1:
        return
    repeat = max(1, sp // kv_heads)

    def mix(qkv: QKV) -> QKV:
        q_TNH, k_TKH, v_TKH = qkv[0], *(x.repeat_interleave(repeat, 1) for x in qkv[1:])
        blocks = torch.cat((q_TNH, k_TKH, v_TKH), 1).unflatten(1, (sp, -1))
        sizes = [x.shape[1] // sp for x in (q_TNH, k_TKH, v_TKH)]
        q, k, v = (part.flatten(1, 2) for part in blocks.split(sizes, 2))
        return q, k, v

    kv_of_N = plain.kv_of_N * repeat + torch.arange(heads) // (heads // sp) % repeat
    yield (
        NAME,
        "queries, keys and values are cut as one tensor",
        replace(plain, change_qkv=mix, kv_of_N=kv_of_N),
    )


def orders(sp: int, shard_length: int, heads: int) -> Iterator[tuple[str, Tensor]]:
    """Yield every wrong order of (token, head) pairs, as flat indices, with a description."""
    if sp == 1 or heads % sp:
        return
    sizes = {"r": sp, "l": shard_length, "b": sp, "m": heads // sp}
    at = torch.arange(sp * shard_length * heads).view(*sizes.values())
    ways: dict[str, Tensor] = {}
    for kept in ("", "r", "b", "rb"):
        free = [axis for axis in AXES if axis not in kept]
        for order in permutations(free):
            whole = (*kept, *order)
            permuted = at.permute([AXES.index(axis) for axis in whole])
            back = [(*kept, *free).index(axis) for axis in AXES]
            shape = [sizes[axis] for axis in (*kept, *free)]
            way = permuted.reshape(shape).permute(back).flatten()
            ways[_describe_order(kept, order)] = way
            ways[f"{_describe_order(kept, order)}, undone"] = way.argsort()
    for peer in range(1, sp):
        ways[f"{peer} blocks of heads on"] = at.roll(peer, 2).flatten()
    swapped = [1, 0, *range(2, sp)]
    ways["the first two blocks of heads are swapped"] = at[:, :, swapped].flatten()
    ways["heads in reverse"] = at.flip(2, 3).flatten()
    right = at.flatten()
    for how, way in ways.items():
        # If a size is one, several orders are equal. All are yielded, because `reshapes` finds the
        # order of keys by the description of that of queries.
        if not torch.equal(way, right):
            yield how, way


def _describe_order(kept: str, order: tuple[str, ...]) -> str:
    where = {"": "over all ranks", "r": "on each rank", "b": "in each block", "rb": "in both"}
    return f"{where[kept]} {''.join(order)}"


def _reorder(order: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x_TNH: x_TNH.flatten(0, 1)[order].view(x_TNH.shape)


def _reorder_keys(order: Tensor, repeat: int) -> Callable[[Tensor], Tensor]:
    """Reorder kv heads as they are exchanged: repeated until every rank has one."""
    return lambda x_TKH: _reorder(order)(x_TKH.repeat_interleave(repeat, 1))[:, ::repeat]


def _take_tokens(at_T: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x_TNH: x_TNH[at_T]


def _change_each(*changes: Callable[[Tensor], Tensor] | None) -> Callable[[QKV], QKV]:
    """Return a change of queries, keys and values; a part that is None or left out is kept."""

    def change_qkv(qkv: QKV) -> QKV:
        padded = (*changes, *[None] * (3 - len(changes)))
        q, k, v = (
            x if change is None else change(x) for change, x in zip(padded, qkv, strict=True)
        )
        return q, k, v

    return change_qkv


ALL = (reshapes, dealt, cut_as_one)
