"""Files are read within bounds, and text moves nothing on a terminal."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.outside import LONGEST, NotReadable, printable, read_file, read_json


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "is no file"),
        (lambda file: file.mkdir(), "is no file"),
        (lambda file: file.symlink_to("/dev/zero"), "is no file, but a link"),
        (lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 1 << 40), "use one of"),
    ],
)
def test_what_is_no_file_or_too_large_is_not_read(
    make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    make(tmp_path / "file")
    with pytest.raises(NotReadable, match=said):
        read_file(tmp_path / "file", 100)


def test_a_file_is_read_whole_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert read_file(tmp_path / "file", 100) == b"x" * 100
    with pytest.raises(NotReadable, match="has 100 bytes; use one of at most 99"):
        read_file(tmp_path / "file", 99)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is\n\tand ä — 猫 …", "as it is\n\tand ä — 猫 …"),
        ("\x1b[2Jcleared \x1b]0;title\x07", "�[2Jcleared �]0;title�"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("\u202egnorw", "�gnorw"),
        ("half \ud83d", "half �"),
        ("\x00\x7f\x9b", "���"),
    ],
)
def test_text_has_nothing_that_a_terminal_obeys(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_texts_of_a_document_are_harmless_wherever_they_stand() -> None:
    document = {"\x1b[1m": ["\x07", {"a": "b\x08", "n": 7}], "\udc80t": None, "case": "\ud83d"}
    assert read_json(json.dumps(document).encode()) == {
        "�[1m": ["�", {"a": "b�", "n": 7}], "�t": None, "case": "�",
    }  # fmt: skip


def test_text_is_cut_to_what_a_person_reads() -> None:
    assert printable("x" * LONGEST) == "x" * LONGEST
    assert printable("x" * (LONGEST + 1)) == "x" * LONGEST + " … cut"
