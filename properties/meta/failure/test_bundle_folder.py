"""A bundle has a place of its own, wherever it can be written."""

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from harness.failure.bundle import find_bundle, read_bundle, write_bundle
from harness.failure.bundle.folder import elsewhere
from harness.failure.bundle.keep import keep
from harness.failure.bundle.read import BadBundle
from harness.ranks.pool import RankPool
from properties.helpers.bundles import CASE, made_by_hand


def test_where_nothing_can_be_written_a_bundle_goes_to_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # Not even root makes a folder there.
    monkeypatch.chdir("/proc")
    place = write_bundle(made_by_hand("labels"))
    assert place.parent == tmp_path / f"harness-failures-{os.getuid()}"
    assert find_bundle(CASE.id) == place
    assert read_bundle(place).case == CASE
    assert stat.filemode(place.parent.stat().st_mode) == "drwx------"


@pytest.mark.parametrize("what", ["link", "another user's", "open to others"])
def test_what_others_can_reach_in_the_temporary_folder_is_neither_written_nor_read(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness_pool: RankPool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir("/proc")
    place = write_bundle(made_by_hand("labels"))
    folder = place.parent
    if what == "link":
        folder.rename(tmp_path / "theirs")
        folder.symlink_to(tmp_path / "theirs")
    elif what == "another user's":
        monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
        folder = folder.rename(elsewhere())
    else:
        folder.chmod(0o777)
    said = keep(made_by_hand("labels"), harness_pool)
    assert said.startswith("could not be written: PermissionError: ")
    assert "can be written by others, or is a link; remove it" in said
    with pytest.raises(BadBundle, match="No such file or directory"):
        find_bundle(CASE.id)


def test_where_nothing_at_all_can_be_written_that_is_said(
    monkeypatch: pytest.MonkeyPatch, harness_pool: RankPool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    monkeypatch.chdir("/proc")
    said = keep(made_by_hand("labels"), harness_pool)
    assert said.startswith("could not be written: ")


def test_candidates_of_one_file_name_have_bundles_of_their_own(tmp_path: Path) -> None:
    names = ("a/mine.py:STEP", "b/mine.py:STEP", "mine.py:STEP", "odd name\n.py:STEP")
    places = {write_bundle(replace(made_by_hand(), candidate=n), tmp_path) for n in names}
    assert len(places) == len(names)
    assert tmp_path / f"{CASE.id}-mine.py-STEP" in places
    for place in places:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", place.name)
        read_bundle(place)
