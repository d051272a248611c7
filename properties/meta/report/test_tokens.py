"""The token map shows each token of a case, how far off it is, and who holds it."""

import re
from dataclasses import replace

from harness.case import Row
from harness.trace import Misfit, MisfitKind
from properties.helpers.drawn import CASE, SIGNS, pictured
from properties.meta.report.pages import cells_of, page_of


def test_a_map_has_a_cell_for_each_token_and_for_padding() -> None:
    page = page_of(pictured())
    assert cells_of(page) == list(SIGNS)
    assert page.count("padding that rank 1 computes") == 2 * 4
    assert "row 0 position 4, token 4, id " in page
    assert "label 5, expected 4; error: 10^14 budgets or more" in page
    # A token does not count in the loss if it ends its row or if the next one is no target.
    masked = re.findall(r'class="cell s. masked" data-token="(\d)"', page)
    assert sorted(set(masked)) == ["1", "4", "6"]


def test_a_token_that_no_rank_or_two_ranks_reported_is_marked() -> None:
    lost = Misfit(MisfitKind.LOST, "nll", (4,))
    twice = Misfit(MisfitKind.TWICE, "nll", (1,), (0, 1))
    for signs in (SIGNS, "0000000"):
        page = page_of(pictured(signs=signs, misfits=(lost, twice)))
        assert "a dashed edge were reported by no rank. Tokens with a thick edge" in page
        assert set(re.findall(r'stray lost" data-token="(\d)"', page)) == {"4"}
        assert set(re.findall(r'stray twice" data-token="(\d)"', page)) == {"1"}
        # Its cell is not drawn as right, whatever it holds.
        assert cells_of(page)[1] == "-"
        assert "nll: token lost" in page


def test_a_cell_holds_what_came_and_below_it_what_was_expected() -> None:
    labels, queries = page_of(pictured()).split('<details class="map"')[1:]
    assert "In a cell stands what came" in labels
    assert re.findall(r'<text x="[\d.]+" y="[\d.]+">(\d+)</text>', labels) == list("0123556")
    assert re.findall(r'class="want"[^>]*>(\d+)<', labels) == ["4"]
    assert "In a cell stands the id" in queries


def test_a_map_of_sixteen_thousand_tokens_stays_under_two_megabytes() -> None:
    case = replace(CASE, rows=tuple(Row("1" * 4096) for _ in range(4)))
    page = page_of(pictured(case, "0" * 16383 + "8"))
    assert len(cells_of(page)) == 16384
    assert len(page.encode()) < 2_000_000


def test_a_page_says_that_a_case_has_too_many_tokens_to_draw() -> None:
    case = replace(CASE, rows=(Row("1" * 20_000),))
    page = page_of(pictured(case, "0" * 20_000))
    assert "The case has 20000 tokens, too many to draw." in page
