"""Pages in a real browser: what they show, how they are used, and that they load nothing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.case import Row
from harness.compare import Look, fault_comparison
from harness.report import comparison_record
from harness.report.html import pages_of
from harness.trace import Fault, Kind
from properties.helpers.comparisons import changed
from properties.helpers.drawn import CASE, HOSTILE, SIGNS, campaign, pictured

ENTERED = "all_to_all #3 on sp, ranks 0,1, shape [4]"
HANG = Fault(
    kind=Kind.HUNG,
    summary="rank 1 gave no answer",
    stacks={0: "in exchange"},
    collectives={
        0: (f"{ENTERED}, not done",),
        1: ("all_gather #3 on sp, ranks 0,1, shape [4]",),
    },
)
FAILURE = pages_of("x", comparison_record(pictured(larger=pictured())))[0].text
PAGES = {
    "failure": FAILURE,
    "hang": pages_of("x", comparison_record(fault_comparison(CASE, "mine.py:MINE", HANG)))[0].text,
    "campaign": pages_of("x", campaign())[0].text,
}
GRID = "details.map[open] svg.tokens"


@contextmanager
def opened(browser: Any, folder: Path, text: str, **options: Any) -> Iterator[Any]:
    """Open a page in a new window; fail if it requests anything, or if its script fails."""
    file = folder / "page.html"
    file.write_text(text)
    context = browser.new_context(**options)
    requests: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.goto(file.as_uri())
    yield page
    assert set(requests) == {file.as_uri()}
    assert errors == []
    context.close()


def test_a_map_colours_tokens_by_sign_and_describes_the_one_under_the_pointer(
    browser: Any, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, FAILURE) as page:
        cells = page.locator(f"{GRID} >> nth=0").locator("[data-token]")
        assert cells.count() == CASE.tokens == len(SIGNS)
        colours = cells.evaluate_all(
            "all => all.map(cell => getComputedStyle(cell.querySelector('rect')).fill)"
        )
        # Tokens have the same colour exactly if they have the same sign.
        assert len(set(zip(SIGNS, colours, strict=True))) == len(set(SIGNS)) == len(set(colours))
        cells.nth(4).hover()
        assert "label 5, expected 4" in page.locator("#says").inner_text()
        assert page.locator("#says").get_attribute("aria-live") == "polite"


def test_every_cell_is_reached_with_the_keyboard_alone(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, FAILURE) as page:
        page.locator(f"{GRID} [tabindex='0']").first.focus()
        page.keyboard.press("Home")
        seen = []
        for _ in SIGNS:
            seen.append(page.evaluate("document.activeElement.dataset.token"))
            assert f"token {seen[-1]}," in page.locator("#says").inner_text()
            page.keyboard.press("ArrowRight")
        assert seen == list(map(str, range(CASE.tokens)))
        page.keyboard.press("ArrowUp")
        assert page.evaluate("document.activeElement.getAttribute('role')") == "gridcell"


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_accessibility_problem(
    browser: Any, tmp_path: Path, name: str, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    text = PAGES[name].replace(
        "script-src 'unsafe-inline'", "script-src 'unsafe-inline' 'unsafe-eval'"
    )
    with opened(browser, tmp_path, text, color_scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        found = Axe().run(page).response["violations"]
        assert [
            (each["id"], node["html"][:200], node.get("failureSummary"))
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ] == []


@pytest.mark.parametrize("width", [360, 800, 2560])
@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_wider_than_the_window(
    browser: Any, tmp_path: Path, name: str, width: int
) -> None:
    with opened(browser, tmp_path, PAGES[name], viewport={"width": width, "height": 800}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_can_be_read_without_scripts(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, FAILURE, java_script_enabled=False) as page:
        assert page.locator("svg.tokens").first.is_visible()
        assert "label-rolled-locally" in page.locator("body").inner_text()
        assert not page.locator("#says").is_visible()
        assert not page.locator("button").is_visible()


def test_a_button_copies_the_replay_command(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, FAILURE) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy").click()
        page.get_by_role("button", name="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == (
            f'python -m harness repro "{CASE}" --candidate mine.py:MINE'
        )


def test_a_map_of_sixteen_thousand_tokens_shows_within_two_seconds(
    browser: Any, tmp_path: Path
) -> None:
    case = replace(CASE, rows=tuple(Row("1" * 4096) for _ in range(4)))
    text = pages_of("x", comparison_record(pictured(case, "0" * 16383 + "8")))[0].text
    with opened(browser, tmp_path, text) as page:
        started = time.monotonic()
        page.reload()
        page.locator(f"{GRID} [data-token='16383']").scroll_into_view_if_needed()
        assert page.locator(f"{GRID} [data-token='16383']").is_visible()
        assert time.monotonic() - started < 2
        # The second map is drawn when it is opened.
        assert page.locator("details.map").nth(1).locator("[data-token]").count() == 0
        page.locator("details.map").nth(1).locator("summary").first.click()
        cells = page.locator("details.map").nth(1).locator("[data-token]")
        assert cells.count() == case.tokens


def test_hostile_text_is_shown_and_not_run(browser: Any, tmp_path: Path) -> None:
    looks = (Look("crashed", HOSTILE),)
    logs = {0: HOSTILE * 200_000}
    comparison = changed(pictured(), candidate=HOSTILE, reason=HOSTILE, seen=looks, logs=logs)
    with opened(browser, tmp_path, pages_of("x", comparison_record(comparison))[0].text) as page:
        assert "<script>alert(1)" in page.locator("h1").inner_text()
        assert page.evaluate("document.scripts.length") == 1
