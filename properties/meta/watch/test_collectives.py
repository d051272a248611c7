"""Where ranks part is told from what each of them remembers of its collectives."""

import pytest

from harness.watch.collectives import (
    Collective,
    first_disagreement,
    group_name,
    members,
    one_by_one,
)

PAIR = group_name("sp of 1x2", [0, 1])
OTHERS = group_name("sp of 2x2", [2, 3])
WORLD = group_name("world of 2x2", [0, 1, 2, 3])


def entered(
    kind: str, sequence: int, group: str = PAIR, shape: str = "[4]", dtype: str = ""
) -> Collective:
    return Collective(group, sequence, kind, shape, done=False, dtype=dtype)


def reduced(first: int, last: int, group: str = PAIR) -> list[Collective]:
    return [entered("all_reduce", sequence, group) for sequence in range(first, last + 1)]


@pytest.mark.parametrize(
    "logs",
    [
        {},
        {0: [], 1: []},
        {0: reduced(1, 5)},
        {0: reduced(1, 5), 1: reduced(1, 5)},
    ],
)
def test_ranks_that_did_the_same_do_not_disagree(logs: dict[int, list[Collective]]) -> None:
    assert first_disagreement(logs) == ""


def test_a_rank_that_fell_behind_never_came() -> None:
    logs = {0: reduced(1, 3), 1: reduced(1, 2)}
    assert first_disagreement(logs) == (
        f"collective #3 on {PAIR}: rank 0 entered all_reduce of shape [4]; rank 1 never came"
    )


def test_another_kind_under_the_same_number_is_a_disagreement() -> None:
    logs = {0: [*reduced(1, 2), entered("barrier", 3)], 1: reduced(1, 4)}
    told = first_disagreement(logs)
    assert told.startswith(f"collective #3 on {PAIR}: rank 0 entered barrier")
    assert "rank 1 entered all_reduce" in told


def test_another_shape_is_a_disagreement_where_shapes_must_agree() -> None:
    def logs(kind: str) -> dict[int, list[Collective]]:
        return {0: [entered(kind, 1, shape="[2]")], 1: [entered(kind, 1, shape="[3]")]}

    assert "all_reduce of shape [2]; rank 1 entered" in first_disagreement(logs("all_reduce"))
    # Uneven pieces, and what only the root gives.
    for kind in ("all_to_all", "gather", "scatter"):
        assert first_disagreement(logs(kind)) == ""


def test_another_dtype_is_a_disagreement_and_named_where_nothing_else_differs() -> None:
    def logs(kind: str, shape: str = "[2]") -> dict[int, list[Collective]]:
        one = entered(kind, 1, shape="[2]", dtype="Long")
        return {0: [one], 1: [entered(kind, 1, shape=shape, dtype="Double")]}

    told = first_disagreement(logs("all_to_all"))
    assert told.endswith(
        "rank 0 entered all_to_all of shape [2] in Long; "
        "rank 1 entered all_to_all of shape [2] in Double"
    )
    assert "Long" not in first_disagreement(logs("all_reduce", shape="[3]"))
    # Only the root gives something.
    assert first_disagreement(logs("scatter")) == ""


def test_groups_in_step_may_still_be_entered_in_different_orders() -> None:
    pair, whole = entered("all_reduce", 4), entered("barrier", 7, WORLD)
    others = entered("all_reduce", 4, OTHERS)
    logs = {0: [pair, whole], 1: [whole, pair], 2: [others, whole], 3: [others, whole]}
    assert first_disagreement(logs) == (
        f"rank 0 entered {pair} before {whole}; rank 1 entered {whole} before {pair}"
    )
    # Rank 0 shares each of these with another rank: nobody has both to put in order.
    across = entered("barrier", 7, group_name("dp of 2x2", [0, 2]))
    assert first_disagreement({0: [pair, across], 1: [pair], 2: [across]}) == ""
    # What one of them has forgotten stands in no order.
    assert first_disagreement({0: [*reduced(4, 5), whole], 1: [*reduced(5, 5), whole]}) == ""


def test_ranks_in_a_circle_are_out_of_step_also_where_no_two_share_both() -> None:
    pairs = [entered("all_reduce", 1, group) for group in (PAIR, OTHERS)]
    across = [entered("all_reduce", 1, group_name("dp of 2x2", [n, n + 2])) for n in (0, 1)]
    orders = {rank: [pairs[rank // 2], across[rank % 2]] for rank in range(4)}
    assert first_disagreement(orders) == ""
    for rank in (1, 2):
        orders[rank].reverse()
    assert first_disagreement(orders) == (
        f"rank 0 entered {pairs[0]} before {across[0]}; "
        f"rank 1 entered {across[1]} before {pairs[0]}; "
        f"rank 2 entered {across[0]} before {pairs[1]}; "
        f"rank 3 entered {pairs[1]} before {across[1]}"
    )
    # In three of four places they may be turned as they like.
    orders[3].reverse()
    assert first_disagreement(orders) == ""


def test_who_only_waits_for_ranks_in_a_circle_is_not_named() -> None:
    pair, whole, last = (
        entered("all_reduce", 4),
        entered("barrier", 7, WORLD),
        reduced(8, 9, WORLD),
    )
    logs = {0: [*last, pair, whole], 1: [*last, whole, pair], 2: [*last, whole], 3: [*last, whole]}
    assert first_disagreement(logs).count("entered") == 2


def test_what_is_told_in_short_is_the_same_one_by_one() -> None:
    pair, world = group_name("sp of 2x2", [0, 1]), (WORLD, "allreduce", "", "", 1)
    ours, theirs = (pair, "alltoall", "", "", 2), (OTHERS, "alltoall", "", "", 2)
    right = {0: [ours, world], 1: [ours, world], 2: [theirs, world], 3: [theirs, world]}
    assert one_by_one(right) == {}
    logs = one_by_one(right | {1: [world, ours]})
    names = [f"alltoall #1 on {pair}", f"alltoall #2 on {pair}", f"allreduce #1 on {WORLD}"]
    assert list(map(str, logs[0])) == names
    assert first_disagreement(logs).startswith(f"rank 0 entered {names[0]} before {names[2]}; ")


def test_tails_that_start_at_different_numbers_are_compared_where_both_remember() -> None:
    odd = entered("barrier", 40)
    # Rank 0 has forgotten number 40.
    assert first_disagreement({0: reduced(60, 99), 1: [odd, *reduced(41, 99)]}) == ""
    behind = first_disagreement({0: reduced(60, 99), 1: reduced(30, 98)})
    assert behind.startswith(f"collective #99 on {PAIR}: rank 0 entered")
    assert behind.endswith("rank 1 never came")


def test_a_tail_that_ends_before_the_other_begins_is_behind() -> None:
    told = first_disagreement({0: reduced(60, 99), 1: reduced(1, 20)})
    assert told.startswith(f"collective #60 on {PAIR}: rank 0 entered")
    assert told.endswith("rank 1 never came")


def test_a_member_that_entered_nothing_at_all_never_came() -> None:
    assert first_disagreement({0: reduced(1, 1), 1: []}).endswith("rank 1 never came")
    # A full log may have forgotten; and of those that did not report nothing is known.
    busy = reduced(1, 9, group_name("dp of 2x1", [1]))
    assert first_disagreement({0: reduced(1, 1), 1: busy}, room=9) == ""
    assert first_disagreement({0: reduced(1, 1), 1: busy}, room=10).endswith("rank 1 never came")
    assert first_disagreement({0: reduced(1, 1)}) == ""


def test_who_is_not_a_member_is_not_missed() -> None:
    logs = {0: reduced(1, 2), 1: reduced(1, 2), 2: reduced(1, 7, OTHERS), 3: reduced(1, 7, OTHERS)}
    assert first_disagreement(logs) == ""
    # Of a candidate's own group the members are not known, only those that entered.
    assert first_disagreement({0: reduced(1, 2, "mine (7)"), 1: []}) == ""


def test_the_first_disagreement_comes_first_in_the_order_of_entering() -> None:
    whole = [entered("all_reduce", 1, WORLD)]
    logs = {
        0: [*reduced(1, 1), entered("barrier", 2), *whole],
        1: [*reduced(1, 3), *whole],
        2: whole,
        3: [],
    }
    told = first_disagreement(logs)
    assert told.startswith(f"collective #2 on {PAIR}: rank 0 entered barrier")
    del logs[0][1]
    del logs[1][1:3]
    told = first_disagreement(logs)
    assert told.startswith(f"collective #1 on {WORLD}: rank 0 entered all_reduce")
    assert told.endswith("rank 3 never came")


def test_the_gate_and_messages_between_two_ranks_are_no_disagreement() -> None:
    gate = group_name("gate of 1x2", [0, 1])
    logs = {
        0: [*reduced(1, 1), entered("send 0->1", 1), entered("barrier", 1, gate)],
        1: [*reduced(1, 1), entered("recv 0<-1", 1)],
    }
    assert first_disagreement(logs) == ""


def test_a_group_name_tells_its_members() -> None:
    assert members(group_name("sp of 2x2", [2, 3])) == {2, 3}
    assert members(group_name("sp of 16x1", [10])) == {10}
    assert members("undefined (5)") == set()
