"""A supervisor imports for its ranks what a candidate's file imports and what takes long."""

import os
from pathlib import Path

import pytest

from harness.candidates import locate
from harness.candidates.registry import SHARES
from harness.candidates.slow_imports import MOST, slow_imports
from harness.case import parse
from harness.rank_program.placement import Placement
from harness.ranks.pool import RankPool
from harness.supervision import host
from harness.trace import Assembly
from harness.wire.messages import Order

CASE = parse("case/1 rows=3:111,4:1011 sp=2")
MODULE = "transformers.modeling_utils"
ASKS = f"""
import sys

FOUND = {{"torch._dynamo", {MODULE!r}}} <= {{*sys.modules}}
from harness.candidates.own.native import LocalDialect

# What the harness reads:
import transformers


class Asks(LocalDialect):
    name = "asks"

    def supports(self, case):
        return None if FOUND else "a rank has to import it"


MINE = Asks()
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import transformers", [MODULE]),
        ("if True:\n    from transformers import AutoModel\nimport transformers", [MODULE]),
        ("from transformers.models.llama import modeling_llama", [MODULE]),
        ("from harness.recipes.families import family", [MODULE]),
        ("from harness.recipes.ulysses import ulysses", [MODULE]),
        ("# import transformers", []),
        ("import transformers_of_mine", []),
        ("from mine import transformers", []),
        (" " * MOST + "\nimport transformers", []),
        ("", []),
    ],
)
def test_imports_are_read_from_the_text_of_a_file(
    text: str, found: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert [*slow_imports(file)] == found
    assert [*locate(f"{file}:MINE").slow_imports] == found


def test_a_module_of_the_current_folder_is_read_and_what_comes_with_the_harness_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("package").mkdir()
    Path("package", "mine.py").write_text("import transformers")
    assert locate("package.mine:MINE").slow_imports == (MODULE,)
    assert locate("package.other:MINE").slow_imports == ()
    assert locate("native-local").slow_imports == ()
    assert locate("harness.recipes.families:family").slow_imports == ()


def test_a_file_of_the_same_name_beside_it_is_what_the_import_means(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import transformers")
    (tmp_path / "transformers.py").touch()
    assert slow_imports(file) == ()


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.py")
    assert slow_imports(tmp_path / "mine.py") == ()


@pytest.mark.parametrize(
    ("device", "imports"),
    [("cpu", [host.FIRST_USE, MODULE]), ("pretend:0", []), ("cuda:0", [])],
)
def test_only_ranks_on_cpus_have_it_imported(device: str, imports: list[str]) -> None:
    environment = Placement((device,)).environment()
    order = Order(ranks=2, environment=environment, imports=[MODULE], launch="")
    assert host.imports_for_all(order) == imports


@pytest.mark.slow
def test_ranks_find_it_imported_or_else_import_it_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "mine.py").write_text(ASKS)
    mine = locate(f"{tmp_path}/mine.py:MINE")
    with RankPool(2) as pool:
        assert isinstance(pool.run(CASE, mine), Assembly)
    # If the supervisor cannot import it, ranks start all the same.
    monkeypatch.setattr(host, "imports_for_all", lambda _order: ["no_such_module"])
    with RankPool(2) as pool:
        outcome = pool.run(CASE, mine)
        assert getattr(outcome, "reason", "") == "a rank has to import it"


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("mutants.B181", (MODULE,)),
        ("benign.zigzag-columns", (MODULE,)),
        (f"{SHARES}:gpt_oss__grpo", (MODULE,)),
        ("mutants.B14", ()),
    ],
)
def test_a_step_of_ours_with_a_recipe_imports_transformers(
    name: str, modules: tuple[str, ...]
) -> None:
    assert locate(name).slow_imports == modules
