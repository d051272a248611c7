"""Every failure has a folder of its own; if none can be written here, a private one elsewhere."""

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from harness.failure.bundle import find_bundle, read_bundle, write_bundle
from harness.failure.bundle.folder import fallback_folder
from harness.failure.bundle.keep import keep_bundle
from harness.failure.bundle.read import BadBundle
from harness.ranks.pool import RankPool
from properties.helpers.bundles import CASE, make_comparison


def test_a_bundle_goes_to_the_temporary_folder_if_the_current_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # In /proc even root cannot make a folder.
    monkeypatch.chdir("/proc")
    place = write_bundle(make_comparison("labels"))
    assert place.parent == tmp_path / f"harness-failures-{os.getuid()}"
    assert find_bundle(CASE.id) == place
    assert read_bundle(place).case == CASE
    assert stat.filemode(place.parent.stat().st_mode) == "drwx------"


@pytest.mark.parametrize("danger", ["link", "another user's", "open to others"])
def test_a_temporary_folder_that_others_can_write_is_neither_written_nor_read(
    danger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness_pool: RankPool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir("/proc")
    place = write_bundle(make_comparison("labels"))
    folder = place.parent
    if danger == "link":
        folder.rename(tmp_path / "theirs")
        folder.symlink_to(tmp_path / "theirs")
    elif danger == "another user's":
        monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
        folder = folder.rename(fallback_folder())
    else:
        folder.chmod(0o777)
    message = keep_bundle(make_comparison("labels"), harness_pool)
    assert message.startswith("could not be written: PermissionError: ")
    assert "can be written by others, or is a link; remove it" in message
    with pytest.raises(BadBundle, match="No such file or directory"):
        find_bundle(CASE.id)


def test_keep_reports_that_no_folder_can_be_written(
    monkeypatch: pytest.MonkeyPatch, harness_pool: RankPool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    monkeypatch.chdir("/proc")
    message = keep_bundle(make_comparison("labels"), harness_pool)
    assert message.startswith("could not be written: ")


def test_candidates_in_files_of_one_name_have_bundles_of_their_own(tmp_path: Path) -> None:
    names = ("a/mine.py:STEP", "b/mine.py:STEP", "mine.py:STEP", "odd name\n.py:STEP")
    places = {write_bundle(replace(make_comparison(), candidate=n), tmp_path) for n in names}
    assert len(places) == len(names)
    assert tmp_path / f"{CASE.id}-mine.py-STEP" in places
    for place in places:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", place.name)
        read_bundle(place)
