"""The reader of bundles accepts a folder, or refuses it in one sentence, whatever is in it."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from safetensors import SafetensorError
from safetensors.numpy import load

from harness.compare import Look
from harness.failure.bundle import BadBundle, Origin, read_bundle, write_bundle
from harness.failure.bundle.origin import local_origin
from harness.failure.bundle.read import RECORD, TENSORS
from properties.helpers.bundles import CASE, LINE, make_comparison
from properties.helpers.fuzzing import fuzz, mutate, one_value_else


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    origin = local_origin(campaign={"seed": 1}, test="a", blob="b")
    comparison = make_comparison("labels", "nll", before=(CASE,), seen=(Look("crashed", "so"),))
    return write_bundle(comparison, tmp_path / "kept", origin)


def refusal_in_one_sentence(error: pytest.ExceptionInfo[BadBundle], place: Path) -> str:
    """Return the message without the bundle's path; fail if it has several lines."""
    message = str(error.value)
    assert message.startswith(f"bundle={place}: ")
    assert "\n" not in message
    return message.removeprefix(f"bundle={place}: ")


def edit(**changes: Any) -> Callable[[Path], object]:
    """Return a function that changes fields of the record; `a__b` is field b of object a."""

    def change(place: Path) -> None:
        record = json.loads((place / RECORD).read_text())
        for name, value in changes.items():
            outer, _, inner = name.partition("__")
            (record[outer] if inner else record)[inner or outer] = value
        (place / RECORD).write_text(json.dumps(record))

    return change


def drop(name: str) -> Callable[[Path], object]:
    def change(place: Path) -> None:
        record = json.loads((place / RECORD).read_text())
        del record[name]
        (place / RECORD).write_text(json.dumps(record))

    return change


def replace_file(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def change(place: Path) -> None:
        (place / name).unlink()
        make(place / name)

    return change


def make_sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(1 << 40)


def cut_off_tensors(place: Path) -> None:
    data = (place / TENSORS).read_bytes()
    (place / TENSORS).write_bytes(data[:-9])


def replace_tensors(dtype: str, *shape: int) -> Callable[[Path], object]:
    """Return a function that writes a sound safetensors file which numpy cannot represent."""
    size = 0 if 0 in shape else 2
    header = {"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}
    head = json.dumps(header).encode()
    return lambda place: (place / TENSORS).write_bytes(
        len(head).to_bytes(8, "little") + head + bytes(size)
    )


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no record": (lambda p: (p / RECORD).unlink(), f"{RECORD} cannot be read: No such file"),
    "no tensors": (lambda p: (p / TENSORS).unlink(), f"{TENSORS} cannot be read: No such file"),
    "a folder": (replace_file(RECORD, Path.mkdir), f"{RECORD}: is no file"),
    "a pipe": (replace_file(RECORD, os.mkfifo), f"{RECORD}: is no file"),
    "a loop": (
        replace_file(TENSORS, lambda f: f.symlink_to(f)),
        f"{TENSORS}: is no file, but a link",
    ),
    "a device": (replace_file(RECORD, lambda f: f.symlink_to("/dev/zero")), "is no file"),
    "a large record": (replace_file(RECORD, make_sparse), f"{RECORD}: has {1 << 40} bytes"),
    "large tensors": (replace_file(TENSORS, make_sparse), f"{TENSORS}: has {1 << 40} bytes"),
    "no text": (lambda p: (p / RECORD).write_bytes(b'{"case": "\xff"}'), "is not a failure"),
    "empty": (lambda p: (p / RECORD).write_bytes(b""), "is not a failure record"),
    "a list": (lambda p: (p / RECORD).write_text("[]"), "is not a failure record"),
    "no case": (lambda p: (p / RECORD).write_text("{}"), "is not a failure record"),
    "deep": (lambda p: (p / RECORD).write_text("[" * 10**6), "is not a failure record"),
    "a long number": (lambda p: (p / RECORD).write_text("9" * 10**4), "is not a failure record"),
    "cut": (cut_off_tensors, f"{TENSORS}: is no safetensors file"),
    "another dtype": (replace_tensors("BF16", 1), f"{TENSORS}: is no safetensors file"),
    "a shape too large": (replace_tensors("F64", 0, 1 << 40, 1 << 40), "is no safetensors file"),
    "a size too large": (replace_tensors("F64", 0, 1 << 63), "is no safetensors file"),
    "no candidate": (drop("candidate"), "candidate: is missing"),
    "one more": (edit(more=1), "more: is not known"),
    "a number for text": (edit(candidate=3), "candidate: expected `str`, got `int`"),
    "a truth for a number": (edit(format=True), "format: expected `int`, got `bool`"),
    "text for a list": (edit(before=LINE), "before: expected `array`, got `str`"),
    "another format": (edit(format=1), "format=1: this version reads 8"),
    "a bad case": (edit(case=f"{LINE} heads=3"), "heads=3: stated twice"),
    "a bad case before": (edit(before=[f"{LINE} x=1"]), "x='x=1': unknown field"),
    "a case before that is none": (edit(before=[[]]), "before[0]: expected `str`, got `array`"),
    "too many ranks": (edit(ranks=1025), "ranks: expected `int` <= 1024"),
    "another case": (edit(case=LINE.replace("seed=0", "seed=1")), "its case has"),
    "no verdict": (edit(verdict="FINE"), "verdict='FINE': is none, or not that of its mark"),
    "another mark": (edit(mark__verdict="FAULT"), "verdict='DIVERGED': is none, or not that"),
    "a wrong mark": (edit(mark__root=None), "mark.root: expected `str`, got `null`"),
    "a wrong origin": (edit(origin__ranks="4"), "origin.ranks: expected `int`, got `str`"),
    "another oracle": (
        edit(origin__against="neither"),
        "origin.against='neither': is no reference",
    ),
    "a wrong version": (
        edit(origin__versions={"torch": 2}),
        "origin.versions[...]: expected `str`, got `int`",
    ),
    "a wrong sentence": (edit(left_out=[1]), "left_out[0]: expected `str`, got `int`"),
    "tensors of no key": (edit(tensors=[]), "4 tensors in it belong to no key"),
    "a key of no tensor": (edit(tensors=[{"key": "x", "shape": []}]), "has no tensors in it"),
    "less than no ranks": (edit(ranks=-1), "ranks: expected `int` >= 0"),
    "more of a mark": (edit(mark__more=1), "mark.more: is not known"),
    "more of an origin": (edit(origin__more=1), "origin.more: is not known"),
    "no origin": (edit(origin={}), "origin.device: is missing"),
    "a size below nothing": (
        edit(tensors=[{"key": "labels", "shape": [-1]}]),
        "tensors[0].shape[0]: expected `int` >= 0",
    ),
    "no shape": (edit(tensors=[{"key": "labels"}]), "tensors[0].shape: is missing"),
    "another shape": (edit(tensors=[{"key": "labels", "shape": [2]}]), "do not fit together"),
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_damaged_bundle_is_refused_in_one_sentence(damage: str, bundle: Path) -> None:
    apply_damage, sentence = HOSTILE[damage]
    apply_damage(bundle)
    with pytest.raises(BadBundle) as refused:
        read_bundle(bundle)
    assert sentence in refusal_in_one_sentence(refused, bundle)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "x" * 5000, "/dev/null", "..", "/proc/self"])
def test_a_path_that_cannot_be_a_bundle_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(BadBundle) as refused:
        read_bundle(Path(name))
    refusal_in_one_sentence(refused, Path(name))


def mutant_records(record: bytes, random: Random) -> Iterator[bytes]:
    """Yield records with one wrong value, and texts with any characters changed."""
    text = record.decode()
    while True:
        yield (
            one_value_else(text, random) if random.random() < 0.5 else mutate(text, LINE, random)
        ).encode()


def mutant_tensors(file: bytes, random: Random) -> Iterator[bytes]:
    """Yield files with a wrong header of the stated length, and some with any bytes changed."""
    size = int.from_bytes(file[:8], "little")
    header, values = file[8 : 8 + size], file[8 + size :]
    while True:
        if random.random() < 0.3:
            yield mutate(file.decode("latin-1"), "", random).encode("latin-1")
            continue
        changed = mutate(header.decode("latin-1"), "", random).encode("latin-1")
        yield len(changed).to_bytes(8, "little") + changed + values


FUZZ = {RECORD: mutant_records, TENSORS: mutant_tensors}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("file", FUZZ)
def test_a_mutated_bundle_is_read_or_refused(file: str, count: int, bundle: Path) -> None:
    def decode(data: bytes) -> None:
        (bundle / file).write_bytes(data)
        found = read_bundle(bundle)
        # A bundle that is accepted can be printed and replayed.
        f"{found.case} {found.candidate} {found.mark} {found.explanation}".encode()
        assert all(tensor.expected.shape == tensor.got.shape for tensor in found.tensors)

    inputs = FUZZ[file]((bundle / file).read_bytes(), Random(0))
    seen = fuzz(decode, inputs, BadBundle, count)
    assert seen["accepted"] > count // 50
    assert seen["refused"] > count // 2


@pytest.mark.parametrize("file", FUZZ)
def test_the_fuzz_notices_a_reader_that_trusts_its_input(file: str, bundle: Path) -> None:
    def decode_without_checks(data: bytes) -> None:
        if file == RECORD:
            Origin(**json.loads(data)["origin"])
        else:
            load(data)["nll/got"].tobytes()

    inputs = FUZZ[file]((bundle / file).read_bytes(), Random(0))
    with pytest.raises((KeyError, TypeError, json.JSONDecodeError, SafetensorError)):
        fuzz(decode_without_checks, inputs, BadBundle, 1000)
