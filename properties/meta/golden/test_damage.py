"""Every damage of a store is named in one sentence, and nothing in the store is changed."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import safetensors.numpy

from harness.cli import main
from harness.golden import BadGolden, examine
from harness.golden.manifest import FILE, Listed, manifest_text, sha256
from harness.golden.tensors import ENTRY, parse_tensors
from harness.golden.vector import parse_vector
from properties.helpers.fuzzing import fuzz, mutate
from properties.helpers.stores import files, on_disk, stored_in

DAMAGED = 4
VECTOR, TENSORS = "vectors/two-rows.json", "tensors/two-rows.safetensors"
FUZZED = 5_000
COUNTS = pytest.mark.parametrize("count", [FUZZED, pytest.param(100_000, marks=pytest.mark.long)])


def header_of(data: bytes) -> dict[str, Any]:
    """Return the JSON header of a safetensors file."""
    record: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return record


def flipped(folder: Path) -> None:
    data = bytearray((folder / TENSORS).read_bytes())
    data[-5] ^= 1
    (folder / TENSORS).write_bytes(data)


def truncated(folder: Path) -> None:
    (folder / TENSORS).write_bytes((folder / TENSORS).read_bytes()[:-100])


def without_its_header(folder: Path) -> None:
    (folder / TENSORS).write_bytes(b"\xff" * 40)


def without_a_tensor(folder: Path) -> None:
    data = (folder / TENSORS).read_bytes()
    tensors = safetensors.numpy.load(data)
    del tensors["grad.head"]
    changed = safetensors.numpy.save(tensors, header_of(data)["__metadata__"])
    (folder / TENSORS).write_bytes(changed)
    # The digest fits, so that only the missing tensor is left to be found.
    manifest = (folder / FILE).read_text().replace(sha256(data), sha256(changed))
    (folder / FILE).write_text(manifest)


def without_a_file(folder: Path) -> None:
    (folder / TENSORS).unlink()


def with_another_file(folder: Path) -> None:
    (folder / "tensors" / "stray.bin").write_bytes(b"x")


def of_another_version(folder: Path) -> None:
    (folder / FILE).write_text((folder / FILE).read_text().replace("manifest/1", "manifest/2"))


def without_a_manifest(folder: Path) -> None:
    (folder / FILE).unlink()


def with_an_edited_case(folder: Path) -> None:
    old = (folder / VECTOR).read_bytes()
    new = old.replace(b"vocab=10", b"vocab=11")
    (folder / VECTOR).write_bytes(new)
    manifest = (folder / FILE).read_text().replace(sha256(old), sha256(new))
    (folder / FILE).write_text(manifest)


def with_an_edited_comment(folder: Path) -> None:
    (folder / VECTOR).write_bytes((folder / VECTOR).read_bytes().replace(b"It is", b"It was"))


def with_a_hidden_folder(folder: Path) -> None:
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "more").write_bytes(b"x")


def with_a_link(folder: Path) -> None:
    (folder / VECTOR).rename(folder.parent / "elsewhere.json")
    (folder / VECTOR).symlink_to(folder.parent / "elsewhere.json")


def with_a_folder_that_is_a_link(folder: Path) -> None:
    (folder / "more").symlink_to(folder.parent)


def with_a_pipe(folder: Path) -> None:
    (folder / TENSORS).unlink()
    os.mkfifo(folder / TENSORS)


SENTENCES: dict[Callable[[Path], None], str] = {
    flipped: f"{TENSORS}: its SHA-256 is ",
    truncated: f"{TENSORS}: is not a whole safetensors file",
    without_its_header: f"{TENSORS}: is cut off after 40 bytes",
    without_a_tensor: f"{TENSORS}: grad.head: the tensor is missing",
    without_a_file: f"{TENSORS}: is missing; restore it",
    with_another_file: "tensors/stray.bin: is not in the manifest",
    of_another_version: "manifest.json: format='manifest/2': this version reads 'manifest/1'",
    without_a_manifest: "manifest.json: is missing",
    with_an_edited_case: f"{VECTOR}: its case was edited: its tensors were made for case/1 rows=4",
    with_an_edited_comment: f"{VECTOR}: its SHA-256 is ",
    with_a_hidden_folder: ".hidden/more: is not in the manifest",
    with_a_link: f"{VECTOR}: is no file, but a link; put in its place what it leads to",
    with_a_folder_that_is_a_link: "more: is no file, but a link; put in its place",
    with_a_pipe: f"{TENSORS}: is no file",
}


@pytest.mark.slow(but=10)
@pytest.mark.parametrize("command", ["verify", "diff", "generate", "list"])
@pytest.mark.parametrize("damage", SENTENCES, ids=lambda damage: damage.__name__)
def test_a_damage_is_named_and_no_file_is_changed(
    damage: Callable[[Path], None],
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("harness.commands.golden.look.open_pool", fail_on_ranks)
    folder = tmp_path / "golden"
    stored_in(folder)
    damage(folder)
    before = on_disk(folder)
    assert main(["golden", command, "--store", str(folder)]) == DAMAGED
    errors = capsys.readouterr().err
    if damage is without_a_manifest and command == "generate":
        # Without a manifest, `generate` makes a store from nothing but vectors.
        assert "manifest.json is missing, and there is more than vectors" in errors
    else:
        assert f"harness: {SENTENCES[damage]}" in errors
    assert on_disk(folder) == before


def fail_on_ranks(*_: object) -> None:
    raise AssertionError("a damaged store must be refused before any rank starts")


def test_a_folder_that_does_not_exist_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["golden", "verify", "--store", str(tmp_path / "none")]) == DAMAGED
    assert f"store={tmp_path / 'none'}: No such file or directory" in capsys.readouterr().err


@pytest.mark.slow(but=1)
@COUNTS
@pytest.mark.parametrize(("file", "parse"), [(VECTOR, parse_vector), (TENSORS, parse_tensors)])
def test_mutated_files_are_read_or_refused_in_one_sentence(
    file: str, parse: Callable[[str, bytes], object], count: int
) -> None:
    content, random = files()[file], Random(0)
    seen = fuzz(
        lambda data: require_one_sentence(lambda: parse("two-rows", data)),
        (mutant(content, content, random) for _ in range(count)),
        BadGolden,
        count,
    )
    assert seen["accepted"] > count // 50
    assert seen["refused"] > count // 4


@COUNTS
def test_mutated_manifests_are_read_or_refused_in_one_sentence(count: int) -> None:
    text, random = files()[FILE], Random(0)
    for _ in range(count):
        _, damages = examine({FILE: mutant(text, text, random)})
        assert damages
        for damage in damages:
            assert "\n" not in str(damage)


def require_one_sentence(read: Callable[[], object]) -> None:
    """Raise `ValueError` if the refusal has several lines; let the refusal through otherwise."""
    try:
        read()
    except BadGolden as error:
        if "\n" in str(error):
            raise ValueError("more than one sentence") from error
        raise


def mutant(data: bytes, other: bytes, random: Random) -> bytes:
    """Return a file with a few bytes changed, in a file of tensors mostly in its header."""
    head = 8 + int.from_bytes(data[:8], "little") if data[:1] != b"{" else len(data)
    if random.random() < 0.1:
        head = len(data)
    text, donor = data[:head].decode("latin-1"), other[:head].decode("latin-1")
    if head == len(data):
        return mutate(text, donor, random).encode("latin-1")
    body = mutate(text[8:], donor[8:], random).encode("latin-1")
    return len(body).to_bytes(8, "little") + body + data[head:]


def test_the_fuzz_notices_a_reader_that_trusts_its_input() -> None:
    text = files()[VECTOR]
    with pytest.raises((KeyError, TypeError, ValueError)):
        fuzz(
            lambda data: json.loads(data)["case"].encode(),
            (mutant(text, text, Random(n)) for n in range(FUZZED)),
            BadGolden,
            FUZZED,
        )


def test_the_metadata_of_a_file_has_one_entry_because_several_have_no_order() -> None:
    data = files()[TENSORS]
    assert list(header_of(data)["__metadata__"]) == [ENTRY]


def test_a_manifest_with_a_path_for_a_name_is_refused() -> None:
    entry = Listed("0" * 64, "0" * 64, "unknown", "")
    _, (damage,) = examine({FILE: manifest_text({"../../etc/passwd": entry})})
    assert "a name has a-z, 0-9 and - only" in str(damage)
