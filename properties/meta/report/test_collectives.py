"""The diagram of collectives marks the first one on which ranks part."""

import re

from harness.compare import fault_comparison
from harness.trace import Fault, Kind
from properties.helpers.drawn import CASE
from properties.meta.report.pages import cells_of, page_of


def test_the_page_of_a_hang_marks_where_ranks_part() -> None:
    entered = "all_to_all #3 on sp, ranks 0,1, shape [4]"
    fault = Fault(
        kind=Kind.HUNG,
        summary="rank 1 gave no answer",
        stacks={0: "in exchange", 1: "in loss"},
        collectives={
            0: (entered, "all_gather #4 on sp, ranks 0,1, shape [2], not done"),
            1: (entered, "all_reduce #4 on sp, ranks 0,1, shape [2], not done"),
        },
    )
    page = page_of(fault_comparison(CASE, "mine.py:MINE", fault))
    assert page.count(": here ranks part") == 1
    assert "#4 on sp, ranks 0,1: here ranks part" in page
    assert page.count('class="done"') == page.count('class="waits"') == 2
    assert "in exchange" in page
    assert cells_of(page) == ["-"] * CASE.tokens


def page_of_entries(**collectives: tuple[str, ...]) -> str:
    """Return the page of a hang in which each rank, such as `rank0`, entered these."""
    by_rank = {int(rank.removeprefix("rank")): entered for rank, entered in collectives.items()}
    fault = Fault(kind=Kind.HUNG, summary="no answer", collectives=by_rank)
    return page_of(fault_comparison(CASE, "mine.py:MINE", fault))


def test_ranks_part_where_one_never_entered_though_another_is_done() -> None:
    first, second = (f"all_to_all #{n} on sp, ranks 0,1, shape [4]" for n in (3, 4))
    page = page_of_entries(rank0=(first, second, second.replace("#4", "#5")), rank1=(first,))
    assert re.findall(r"(#\d) on sp, ranks 0,1: here ranks part", page) == ["#4"]


def test_ranks_do_not_part_on_forgotten_collectives_or_on_messages() -> None:
    early, late = (f"all_to_all #{n} on sp, ranks 0,1, shape [{n}]" for n in (3, 4))
    page = page_of_entries(rank0=(early, late), rank1=(late.replace("[4]", "[7]"),))
    assert ": here ranks part" not in page
    page = page_of_entries(rank0=("send #1 on sp, ranks 0,1, shape [2]",), rank1=())
    assert ": here ranks part" not in page
