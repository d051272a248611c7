"""A page says what wrong tokens have in common, and which tokens each rank holds."""

import re
from dataclasses import replace

import pytest

from properties.helpers.comparisons import changed
from properties.helpers.drawn import CASE, pictured
from properties.meta.report.pages import page_of


@pytest.mark.parametrize(
    ("signs", "pattern"),
    [
        ("00-0800", ""),
        ("0080000", "It is the last before another rank goes on"),
        ("0008000", "It is the first after another rank"),
        ("0800080", ""),
        ("0080800", "All 2 are held by rank 0, and stand in row 0"),
        (
            "0000088",
            "All 2 stand in row 1, the only one padded on the left and behind another row",
        ),
        ("8888888", "Every token is wrong"),
    ],
)
def test_a_page_says_what_wrong_tokens_have_in_common(signs: str, pattern: str) -> None:
    failure = pictured(signs=signs)
    assert failure.inquiry.picture is not None
    owners = ((0, 0), (3, 1), (4, 0), (6, 1)) if "held" in pattern else ((0, 0), (3, 1), (6, 0))
    page = page_of(changed(failure, picture=replace(failure.inquiry.picture, owners=owners)))
    assert re.findall(r"<strong>(\w+ \w+ \w+[^<]*)\.</strong>", page) == [pattern] * bool(pattern)


def test_a_page_says_that_wrong_tokens_have_more_before_them_than_the_window() -> None:
    failure = replace(pictured(signs="0088800"), case=replace(CASE, window=2))
    assert "<strong>All 3 have more before them than the window of 2.</strong>" in page_of(failure)


@pytest.mark.parametrize(
    ("signs", "pattern"),
    [
        ("0808000", "All 2 are the last before another rank goes on, of 3 such tokens"),
        ("0080800", "All 2 are the first after another rank, of 3 such tokens"),
        ("0808080", "All 3 are the last before another rank goes on, and none of these is right"),
    ],
)
def test_a_page_says_that_wrong_tokens_stand_at_shard_edges(signs: str, pattern: str) -> None:
    failure = pictured(signs=signs)
    assert failure.inquiry.picture is not None
    owners = ((0, 0), (2, 1), (4, 0), (6, 1))
    page = page_of(changed(failure, picture=replace(failure.inquiry.picture, owners=owners)))
    assert re.findall(r"<strong>(All [^<]*)\.</strong>", page) == [pattern] * bool(pattern)


def test_a_page_lists_which_tokens_each_rank_holds() -> None:
    page = page_of(pictured())
    assert (
        '<th scope="row">rank 0</th><td class="number">3</td><td>row 0 position 0 to 2</td>'
        in page
    )
    assert "<td>row 0 position 3 to 4, row 1 position 0 to 1</td>" in page
