"""Untrusted files are read within bounds, documents are checked, and texts are sanitized."""

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from harness.untrusted import (
    LONGEST,
    LONGEST_MESSAGE,
    Misfit,
    NotReadable,
    fitted,
    printable,
    read_file,
    read_json,
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "is no file"),
        (lambda file: file.mkdir(), "is no file"),
        (lambda file: file.symlink_to("/dev/zero"), "is no file, but a link"),
        (lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 1 << 40), "use one of"),
    ],
)
def test_a_path_that_is_no_regular_file_or_a_file_that_is_too_large_is_not_read(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "file")
    with pytest.raises(NotReadable, match=message):
        read_file(tmp_path / "file", 100)


def test_a_file_up_to_the_allowed_size_is_read_whole(tmp_path: Path) -> None:
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
def test_a_printable_text_has_nothing_that_a_terminal_obeys(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_all_texts_of_a_document_are_sanitized() -> None:
    document = {"\x1b[1m": ["\x07", {"a": "b\x08", "n": 7}], "\udc80t": None, "case": "\ud83d"}
    assert read_json(json.dumps(document).encode()) == {
        "�[1m": ["�", {"a": "b�", "n": 7}], "�t": None, "case": "�",
    }  # fmt: skip


def test_a_printable_text_is_cut_to_a_limit() -> None:
    assert printable("x" * LONGEST) == "x" * LONGEST
    assert printable("x" * (LONGEST + 1)) == "x" * LONGEST + " … cut"


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=0, le=9)]
    kind: Literal["a", "b"] = "a"


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    inner: Inner
    many: tuple[Inner, ...] = ()
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    texts: dict[str, str] = {}
    share: float = 0.0


WHOLE = {"name": "x", "inner": {"size": 3}, "counts": {"y": 2}}


def test_a_document_that_fits_becomes_a_record() -> None:
    assert fitted(WHOLE, Outer) == Outer("x", Inner(3), counts=Counter(y=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "name: expected `str`, got `int`"),
        ({"inner": {}}, "inner.size: is missing"),
        ({"inner": {"size": True}}, "inner.size: expected `int`, got `bool`"),
        ({"inner": {"size": 10}}, "inner.size: expected `int` <= 9"),
        ({"inner": {"size": 1, "kind": "c"}}, "inner.kind: invalid enum value 'c'"),
        ({"inner": {"size": 1, "kinds": "c"}}, "inner.kinds: is not known"),
        ({"many": [{"size": 1}, {"size": 1.5}]}, "many[1].size: expected `int`, got `float`"),
        ({"texts": {"a": None}}, "texts[...]: expected `str`, got `null`"),
        ({"share": "all"}, "share: expected `float`, got `str`"),
        ({"counts": {"y": -1}}, "counts: expected `int` >= 0"),
        ({"counts": []}, "counts: expected `object`, got `array`"),
        ({"a\nb": 1}, "a b: is not known"),
        ({"x" * 1000: 1}, "x" * LONGEST_MESSAGE + "…"),
    ],
)
def test_a_document_that_does_not_fit_raises_one_sentence_that_names_the_field(
    change: dict[str, Any], message: str
) -> None:
    for where in ("", "a file.part"):
        with pytest.raises(Misfit) as refused:
            fitted(WHOLE | change, Outer, where)
        whole = f"{where}.{message}".removeprefix(".").removesuffix("…")
        assert str(refused.value).removesuffix("…") == whole[:LONGEST_MESSAGE]
    with pytest.raises(Misfit, match=r"^expected `object`, got `array`$"):
        fitted([], Outer)
