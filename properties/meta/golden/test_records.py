"""A wrong field in a file of a store is named in the refusal."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.numpy

from harness.golden import BadGolden, examine
from harness.golden.manifest import FILE
from harness.golden.tensors import ENTRY, parse_tensors
from harness.golden.vector import parse_vector
from properties.helpers.stores import files
from properties.meta.golden.test_damage import TENSORS, VECTOR, header_of


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (
            lambda line: line.update(vector="0" * 63),
            "vector: expected `str` matching regex '^[0-9a",
        ),
        (lambda line: line.update(tensors="0" * 64 + "\n"), "tensors: expected `str` matching"),
        (lambda line: line.update(commit=3), "commit: expected `str`, got `int`"),
        (lambda line: line.pop("reason"), "reason: is missing"),
        (lambda line: line.update(more=""), "more: is not known"),
    ],
)
def test_a_wrong_line_of_a_manifest_is_refused_with_its_golden_and_field(
    change: Callable[[dict[str, Any]], object], refusal: str
) -> None:
    manifest = json.loads(files()[FILE])
    change(manifest["goldens"]["two-rows"])
    _, (damage,) = examine({FILE: json.dumps(manifest).encode()})
    assert str(damage).startswith(f"{FILE}: goldens.two-rows.{refusal}")


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"name": "three-rows"}, "name='three-rows': must be the file's name"),
        ({"comment": 3}, "comment: expected `str`, got `int`"),
        ({"hunts": "B14"}, "hunts: expected `array`, got `str`"),
        ({"situations": [None]}, "situations[0]: expected `str`, got `null`"),
        ({"more": 1}, "more: is not known"),
        ({"format": "vector/2"}, "format='vector/2': this version reads 'vector/1'"),
    ],
)
def test_a_wrong_vector_is_refused_with_its_field(change: dict[str, Any], refusal: str) -> None:
    record = json.loads(files()[VECTOR])
    with pytest.raises(BadGolden) as refused:
        parse_vector("two-rows", json.dumps(record | change).encode())
    assert str(refused.value).startswith(refusal)
    del record["source"]
    with pytest.raises(BadGolden, match=r"^source: is missing$"):
        parse_vector("two-rows", json.dumps(record).encode())


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"name": "three-rows"}, "name='three-rows': must be the file's name"),
        ({"keys": "loss"}, "keys: expected `array`, got `str`"),
        ({"made": {"torch": 2}}, "made[...]: expected `str`, got `int`"),
        ({"case": None}, "case: expected `str`, got `null`"),
        ({"more": 1}, "more: is not known"),
    ],
)
def test_a_wrong_header_is_refused_with_its_field(change: dict[str, Any], refusal: str) -> None:
    data = files()[TENSORS]
    header = json.loads(header_of(data)["__metadata__"][ENTRY]) | change
    changed = safetensors.numpy.save(safetensors.numpy.load(data), {ENTRY: json.dumps(header)})
    with pytest.raises(BadGolden) as refused:
        parse_tensors("two-rows", changed)
    assert str(refused.value).startswith(refusal)
