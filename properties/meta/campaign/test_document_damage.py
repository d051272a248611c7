"""`merge` refuses a damaged document, or adds it up without an error."""

import io
import json
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from rich.console import Console

from harness.campaign.merge import BadDocument, merge, read_document
from harness.campaign.table import show, show_failures
from properties.helpers.fuzzing import fuzz, mutants
from properties.meta.campaign.test_merge import CASE, summary

COUNTS = [300, pytest.param(100_000, marks=pytest.mark.long)]


def document() -> str:
    """A shard of two candidates, one of which failed."""
    found = summary(1, 2)
    found.placement = {"device": "cpu", "devices": "cpu", "transport": "gloo", "ranks": "2"}
    failed = {
        "case": str(CASE),
        "verdict": "DIVERGED",
        "explanation": "so it was\nindeed",
        "replay": "harness repro",
    }
    found.tallies["b"] = replace(found.tallies["b"], elements=3, failures=[failed])
    return json.dumps(found.record())


@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_document_is_refused_or_added_up_and_shown(count: int, tmp_path: Path) -> None:
    (tmp_path / "2.json").write_text(json.dumps(summary(2, 2).record()))
    other = read_document(str(tmp_path / "2.json"))

    def decode(data: bytes) -> None:
        (tmp_path / "1.json").write_bytes(data)
        found = read_document(str(tmp_path / "1.json"))
        output = io.StringIO()
        console = Console(file=output, width=80)
        for whole in (found, merge([("1.json", found), ("2.json", other)])):
            show(whole, console)
            show_failures(whole, console)
            json.dumps(whole.record()).encode()
        assert "\x1b" not in output.getvalue()
        output.getvalue().encode()

    seen = fuzz(decode, mutants(document(), Random(0)), BadDocument, count)
    assert seen["accepted"] > count // 50
    assert seen["refused"] > count // 2
