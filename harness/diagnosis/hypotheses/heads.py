"""Wrong pairs of query heads and kv heads, and outputs of attention that are partly zero.

Legend: T tokens of a stream with its padding, L those of one rank, N heads.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from harness.diagnosis.forward import Pass, Variants


def kv_heads(plain: Pass) -> Variants:
    """Yield passes in which heads read other kv heads than their own."""
    case, n = plain.case, torch.arange(plain.case.heads)
    count, sp = case.kv_heads, case.sp
    heads_per_kv, heads_per_rank = case.heads // count, case.heads // sp
    kv_per_rank = max(count // sp, 1)
    rank_N, place_N = n // heads_per_rank, n % heads_per_rank
    own_N = place_N // max(heads_per_rank // kv_per_rank, 1)
    first_N = rank_N * count // sp
    dealt_rank_N, dealt_place_N = n % sp, n // sp
    ways = {
        "kv heads are tiled": n % count,
        "kv heads are tiled on each rank": first_N + place_N % kv_per_rank,
        "kv heads are tiled over the ranks": (rank_N % count) if count < sp else n // heads_per_kv,
        "heads read the next group's kv head": (n // heads_per_kv + 1) % count,
        "heads read the kv head of the group before": (n // heads_per_kv - 1) % count,
        "heads read the next rank's kv heads": ((rank_N + 1) % sp) * count // sp + own_N,
        "heads read the kv heads of the rank before": ((rank_N - 1) % sp) * count // sp + own_N,
        "all heads read the first kv head": torch.zeros_like(n),
        "all heads read the last kv head": torch.full_like(n, count - 1),
        "kv heads are read in reverse": count - 1 - n // heads_per_kv,
        "where there are too few kv heads the last is repeated": rank_N.clamp(max=count - 1)
        if count < sp
        else n // heads_per_kv,
        "heads are dealt in turn, kv heads in blocks": dealt_rank_N * count // sp
        + dealt_place_N // max(heads_per_rank // kv_per_rank, 1),
    }
    for how, kv_of_N in ways.items():
        if int(kv_of_N.max()) < count:
            yield "kv-repeat", how, replace(plain, kv_of_N=kv_of_N)


def missing(plain: Pass) -> Variants:
    """Yield passes in which the output of some ranks' heads never arrived."""
    sp, heads_per_rank = plain.case.sp, plain.case.heads // plain.case.sp
    if sp == 1:
        return
    rank_N = torch.arange(plain.case.heads) // heads_per_rank
    own_TN = plain.peer_T[:, None] == rank_N[None, :]
    for how, kept_TN in (
        ("only a rank's own heads are there", own_TN),
        ("a rank's own heads are zero", ~own_TN),
    ):
        yield "exchange-incomplete", how, replace(plain, change_output=_keep(kept_TN[:, :, None]))
    for is_kept in list(product((False, True), repeat=sp))[1:-1] if sp <= 4 else ():
        kept_TN = torch.tensor(is_kept)[rank_N].expand(len(plain.ids_T), -1)
        zero = ", ".join(str(peer) for peer in range(sp) if not is_kept[peer])
        yield (
            "exchange-incomplete",
            f"what rank {zero} attended to is zero",
            replace(plain, change_output=_keep(kept_TN[:, :, None])),
        )


def silent(plain: Pass) -> Variants:
    """Yield passes in which attention gives some tokens nothing."""
    case, starts_T = plain.case, plain.positions_T == 0
    begun_T = torch.zeros_like(starts_T)
    longest = torch.zeros(case.sp, dtype=torch.long)
    for peer in range(case.sp):
        on_peer_T = plain.peer_T == peer
        row_L = starts_T[on_peer_T].long().cumsum(0)
        begun_T[on_peer_T] = row_L > 0
        longest[peer] = row_L.bincount().max() if len(row_L) else 0
    longest_N = longest[torch.arange(case.heads) // (case.heads // case.sp)]
    name = "attention-cut"
    for how, kept_TN in (
        ("what stands before the first row of a shard sees nothing", begun_T[:, None]),
        (
            "further on in a row than the longest of a shard, that rank's heads see nothing",
            plain.positions_T[:, None] < longest_N,
        ),
        ("only the first shard's tokens see anything", plain.peer_T[:, None] == 0),
    ):
        yield name, how, replace(plain, change_output=_keep(kept_TN[:, :, None]))


def _keep(kept: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda out_TNH: out_TNH * kept


ALL = (kv_heads, missing, silent)
