"""Which kv head a head reads, and what is left of attention's output.

Legend: T tokens of a stream with its padding, N heads, K kv heads, M heads of a rank.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from harness.diagnosis.forward import Pass, Variants


def kv_heads(plain: Pass) -> Variants:
    """Heads that read others than their own."""
    case, n = plain.case, torch.arange(plain.case.heads)
    count, sp = case.kv_heads, case.sp
    group, mine = case.heads // count, case.heads // sp
    held = max(count // sp, 1)
    rank_N, place_N = n // mine, n % mine
    own_N = place_N // max(mine // held, 1)
    first_N = rank_N * count // sp
    in_turn, place = n % sp, n // sp
    ways = {
        "kv heads are tiled": n % count,
        "kv heads are tiled on each rank": first_N + place_N % held,
        "kv heads are tiled over the ranks": (rank_N % count) if count < sp else n // group,
        "heads read the next group's kv head": (n // group + 1) % count,
        "heads read the kv head of the group before": (n // group - 1) % count,
        "heads read the next rank's kv heads": ((rank_N + 1) % sp) * count // sp + own_N,
        "heads read the kv heads of the rank before": ((rank_N - 1) % sp) * count // sp + own_N,
        "all heads read the first kv head": torch.zeros_like(n),
        "all heads read the last kv head": torch.full_like(n, count - 1),
        "kv heads are read in reverse": count - 1 - n // group,
        "where there are too few kv heads the last is repeated": rank_N.clamp(max=count - 1)
        if count < sp
        else n // group,
        "heads are dealt in turn, kv heads in blocks": in_turn * count // sp
        + place // max(mine // held, 1),
    }
    for how, kv_of_N in ways.items():
        if int(kv_of_N.max()) < count:
            yield "kv-repeat", how, replace(plain, kv_of_N=kv_of_N)


def missing(plain: Pass) -> Variants:
    """Output that never arrived."""
    sp, mine = plain.case.sp, plain.case.heads // plain.case.sp
    if sp == 1:
        return
    own_TN = plain.peer_T[:, None] == (torch.arange(plain.case.heads) // mine)[None, :]
    for how, left_TN in (
        ("only a rank's own heads are there", own_TN),
        ("a rank's own heads are zero", ~own_TN),
    ):
        yield "exchange-incomplete", how, replace(plain, after=_only(left_TN[:, :, None]))
    for peers in list(product((False, True), repeat=sp))[1:-1] if sp <= 4 else ():
        left_TN = torch.tensor(peers)[torch.arange(plain.case.heads) // mine].expand(
            len(plain.ids_T), -1
        )
        named = ", ".join(str(peer) for peer in range(sp) if not peers[peer])
        yield (
            "exchange-incomplete",
            f"what rank {named} attended to is zero",
            replace(plain, after=_only(left_TN[:, :, None])),
        )


def silent(plain: Pass) -> Variants:
    """Tokens without any output of attention."""
    case, starts_T = plain.case, plain.positions_T == 0
    begun_T = torch.zeros_like(starts_T)
    longest = torch.zeros(case.sp, dtype=torch.long)
    for peer in range(case.sp):
        mine_T = plain.peer_T == peer
        row_L = starts_T[mine_T].long().cumsum(0)
        begun_T[mine_T] = row_L > 0
        longest[peer] = row_L.bincount().max() if len(row_L) else 0
    of_heads_N = longest[torch.arange(case.heads) // (case.heads // case.sp)]
    name = "attention-cut"
    for how, left_TN in (
        ("what stands before the first row of a shard sees nothing", begun_T[:, None]),
        (
            "further on in a row than the longest of a shard, that rank's heads see nothing",
            plain.positions_T[:, None] < of_heads_N,
        ),
        ("only the first shard's tokens see anything", plain.peer_T[:, None] == 0),
    ):
        yield name, how, replace(plain, after=_only(left_TN[:, :, None]))


def _only(left: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda out_TNH: out_TNH * left


ALL = (kv_heads, missing, silent)
