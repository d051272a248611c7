"""Where ranks part is found from the last collectives that each of them logged."""

import pytest

from harness.watch.collectives import (
    Collective,
    expand_orders,
    first_disagreement,
    group_name,
    members,
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
def test_ranks_that_entered_the_same_do_not_disagree(logs: dict[int, list[Collective]]) -> None:
    assert first_disagreement(logs) == ""


def test_a_rank_that_did_not_enter_a_collective_never_came() -> None:
    logs = {0: reduced(1, 3), 1: reduced(1, 2)}
    assert first_disagreement(logs) == (
        f"collective #3 on {PAIR}: rank 0 entered all_reduce of shape [4]; rank 1 never came"
    )


def test_another_kind_under_the_same_number_is_a_disagreement() -> None:
    logs = {0: [*reduced(1, 2), entered("barrier", 3)], 1: reduced(1, 4)}
    text = first_disagreement(logs)
    assert text.startswith(f"collective #3 on {PAIR}: rank 0 entered barrier")
    assert "rank 1 entered all_reduce" in text


def test_another_shape_is_a_disagreement_where_shapes_must_agree() -> None:
    def logs(kind: str) -> dict[int, list[Collective]]:
        return {0: [entered(kind, 1, shape="[2]")], 1: [entered(kind, 1, shape="[3]")]}

    assert "all_reduce of shape [2]; rank 1 entered" in first_disagreement(logs("all_reduce"))
    # Pieces may be uneven, and only the root may give something.
    for kind in ("all_to_all", "gather", "scatter"):
        assert first_disagreement(logs(kind)) == ""


def test_another_dtype_is_a_disagreement_and_is_named_if_nothing_else_differs() -> None:
    def logs(kind: str, shape: str = "[2]") -> dict[int, list[Collective]]:
        one = entered(kind, 1, shape="[2]", dtype="Long")
        return {0: [one], 1: [entered(kind, 1, shape=shape, dtype="Double")]}

    text = first_disagreement(logs("all_to_all"))
    assert text.endswith(
        "rank 0 entered all_to_all of shape [2] in Long; "
        "rank 1 entered all_to_all of shape [2] in Double"
    )
    assert "Long" not in first_disagreement(logs("all_reduce", shape="[3]"))
    # Only the root has to give something.
    assert first_disagreement(logs("scatter")) == ""


def test_a_different_order_of_two_shared_groups_is_a_disagreement() -> None:
    pair, whole = entered("all_reduce", 4), entered("barrier", 7, WORLD)
    others = entered("all_reduce", 4, OTHERS)
    logs = {0: [pair, whole], 1: [whole, pair], 2: [others, whole], 3: [others, whole]}
    assert first_disagreement(logs) == (
        f"rank 0 entered {pair} before {whole}; rank 1 entered {whole} before {pair}"
    )
    # Rank 0 shares each of these groups with one other rank, so no order can differ.
    across = entered("barrier", 7, group_name("dp of 2x2", [0, 2]))
    assert first_disagreement({0: [pair, across], 1: [pair], 2: [across]}) == ""
    # Rank 1 has lost an entry, which therefore has no order.
    assert first_disagreement({0: [*reduced(4, 5), whole], 1: [*reduced(5, 5), whole]}) == ""


def test_ranks_that_wait_in_a_circle_disagree_though_no_two_share_both_groups() -> None:
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
    # With three of the four orders reversed there is no circle.
    orders[3].reverse()
    assert first_disagreement(orders) == ""


def test_a_rank_that_waits_for_a_circle_but_is_not_in_it_is_not_named() -> None:
    pair, whole, last = (
        entered("all_reduce", 4),
        entered("barrier", 7, WORLD),
        reduced(8, 9, WORLD),
    )
    logs = {0: [*last, pair, whole], 1: [*last, whole, pair], 2: [*last, whole], 3: [*last, whole]}
    assert first_disagreement(logs).count("entered") == 2


def test_expanded_orders_are_compared_like_logs() -> None:
    pair, world = group_name("sp of 2x2", [0, 1]), (WORLD, "allreduce", "", "", 1)
    first, second = (pair, "alltoall", "", "", 2), (OTHERS, "alltoall", "", "", 2)
    right = {0: [first, world], 1: [first, world], 2: [second, world], 3: [second, world]}
    assert expand_orders(right) == {}
    logs = expand_orders(right | {1: [world, first]})
    names = [f"alltoall #1 on {pair}", f"alltoall #2 on {pair}", f"allreduce #1 on {WORLD}"]
    assert list(map(str, logs[0])) == names
    assert first_disagreement(logs).startswith(f"rank 0 entered {names[0]} before {names[2]}; ")


def test_logs_that_start_at_different_numbers_are_compared_where_they_overlap() -> None:
    odd = entered("barrier", 40)
    # Rank 0 has lost number 40.
    assert first_disagreement({0: reduced(60, 99), 1: [odd, *reduced(41, 99)]}) == ""
    behind = first_disagreement({0: reduced(60, 99), 1: reduced(30, 98)})
    assert behind.startswith(f"collective #99 on {PAIR}: rank 0 entered")
    assert behind.endswith("rank 1 never came")


def test_a_rank_whose_log_ends_before_the_other_begins_never_came() -> None:
    text = first_disagreement({0: reduced(60, 99), 1: reduced(1, 20)})
    assert text.startswith(f"collective #60 on {PAIR}: rank 0 entered")
    assert text.endswith("rank 1 never came")


def test_a_member_that_entered_nothing_at_all_never_came() -> None:
    assert first_disagreement({0: reduced(1, 1), 1: []}).endswith("rank 1 never came")
    # A full log may have lost the entry, and a rank without a log is unknown.
    busy = reduced(1, 9, group_name("dp of 2x1", [1]))
    assert first_disagreement({0: reduced(1, 1), 1: busy}, room=9) == ""
    assert first_disagreement({0: reduced(1, 1), 1: busy}, room=10).endswith("rank 1 never came")
    assert first_disagreement({0: reduced(1, 1)}) == ""


def test_only_members_of_a_group_are_expected_to_enter() -> None:
    logs = {0: reduced(1, 2), 1: reduced(1, 2), 2: reduced(1, 7, OTHERS), 3: reduced(1, 7, OTHERS)}
    assert first_disagreement(logs) == ""
    # The members of a candidate's own group are unknown.
    assert first_disagreement({0: reduced(1, 2, "mine (7)"), 1: []}) == ""


def test_the_disagreement_that_was_entered_first_is_returned() -> None:
    whole = [entered("all_reduce", 1, WORLD)]
    logs = {
        0: [*reduced(1, 1), entered("barrier", 2), *whole],
        1: [*reduced(1, 3), *whole],
        2: whole,
        3: [],
    }
    text = first_disagreement(logs)
    assert text.startswith(f"collective #2 on {PAIR}: rank 0 entered barrier")
    del logs[0][1]
    del logs[1][1:3]
    text = first_disagreement(logs)
    assert text.startswith(f"collective #1 on {WORLD}: rank 0 entered all_reduce")
    assert text.endswith("rank 3 never came")


def test_the_gate_and_messages_between_two_ranks_are_not_compared() -> None:
    gate = group_name("gate of 1x2", [0, 1])
    logs = {
        0: [*reduced(1, 1), entered("send 0->1", 1), entered("barrier", 1, gate)],
        1: [*reduced(1, 1), entered("recv 0<-1", 1)],
    }
    assert first_disagreement(logs) == ""


def test_members_are_read_from_the_name_of_a_group() -> None:
    assert members(group_name("sp of 2x2", [2, 3])) == {2, 3}
    assert members(group_name("sp of 16x1", [10])) == {10}
    assert members("undefined (5)") == set()
