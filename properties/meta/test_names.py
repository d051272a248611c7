"""Short names and file names keep candidates apart whose files have the same name."""

from harness.names import file_name, short_names
from harness.report.html import pages_of
from properties.helpers.drawn import campaign


def test_a_short_name_has_as_many_folders_as_make_it_unique() -> None:
    names = {
        "old/sp/cand.py:SFT": "old/sp/cand.py:SFT",
        "new/sp/cand.py:SFT": "new/sp/cand.py:SFT",
        "/other/cand.py:SFT": "other/cand.py:SFT",
        "new/sp/cand.py:DPO": "cand.py:DPO",
        "cand.py:SFT": "cand.py:SFT",
        "native-local": "native-local",
    }
    assert short_names(names) == names
    assert len(set(short_names(names).values())) == len(names)
    assert short_names(["/long/way/mine.py:STEP"]) == {"/long/way/mine.py:STEP": "mine.py:STEP"}


def test_failures_of_candidates_with_the_same_file_name_have_different_pages() -> None:
    document, names = campaign(), ("a/mine.py:MINE", "b/mine.py:MINE")
    (tally,) = document["candidates"].values()
    (failure,) = tally["failures"]
    document["candidates"] = {
        name: {**tally, "failures": [{**failure, "candidate": name}]} for name in names
    }
    of_campaign, *of_failures = pages_of("x", document)
    assert len({page.name for page in of_failures}) == 2
    assert all(page.name in of_campaign.text for page in of_failures)
    assert file_name("mine.py:MINE") == "mine.py-MINE"
