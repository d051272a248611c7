"""The columns of a failing case stand in its text, on 80 columns, and on its page."""

import re

import pytest

from harness.case import Case, Row
from harness.compare.columns import MOST_TEXTS, BatchColumn, columns_of
from harness.report import comparison_record, explain
from harness.report.html import pages_of
from harness.trace import COMPUTED, DRAWN, Entry, Trace
from properties.helpers.drawn import CASE, HOSTILE, pictured
from properties.meta.report.pages import page_of

torch = pytest.importorskip("torch")

COLUMNS = (
    BatchColumn("gains", is_drawn=True, rows=(("-1.37",), ("0.512",))),
    BatchColumn("weights", is_drawn=True, rows=(("", "0.25", "", "-1", "nan"), ("", "8.36e-05"))),
)


def lines_of(text: str) -> list[str]:
    """Return the lines of the columns, and of nothing else."""
    found = re.search(r"^  columns ((?:.*\n)(?: {10}.*\n)*)", text, re.MULTILINE)
    assert found
    return [line.strip() for line in found[1].splitlines()]


def traced(case: Case, name: str, tokens: list[int]) -> tuple[BatchColumn, ...]:
    trace = Trace()
    numbers = torch.arange(len(tokens), dtype=torch.float64) / 3 - 1e5
    trace.put(name, Entry(numbers.numpy(), torch.tensor(tokens).numpy()))
    return columns_of(case, trace)


def test_a_text_has_a_line_for_rows_and_one_for_the_tokens_of_each_row() -> None:
    assert lines_of(explain(pictured(columns=COLUMNS))) == [
        "gains, by row: -1.37 0.512",
        "weights, row 0: . 0.25 . -1 nan",
        "weights, row 1: . 8.36e-05",
    ]


def test_a_wide_batch_is_cut_to_80_columns_and_few_rows() -> None:
    case = Case(rows=tuple(Row("1" * 300) for _ in range(6)), heads=2)
    (column,) = traced(case, f"{COMPUTED}old", list(range(case.tokens)))
    assert not column.is_drawn
    assert sum(map(len, column.rows)) == MOST_TEXTS < case.tokens
    text = explain(pictured(case, "0" * case.tokens, columns=(column, *COLUMNS[:1])))
    lines = lines_of(text)
    assert [line.partition(":")[0] for line in lines] == [
        *("old, row 0", "old, row 1", "old", "gains, by row"),
    ]
    assert lines[0].startswith("old, row 0: -1e+05 -1e+05 ")
    assert lines[0].endswith(" …")
    assert lines[2] == "old: 4 more rows"
    assert max(len(line) for line in lines) + 10 <= 80


def test_one_number_for_each_row_is_told_from_one_for_each_token() -> None:
    case = Case(rows=(Row("01"), Row("011")), heads=2)
    by_row, by_target = (traced(case, f"{DRAWN}x", tokens) for tokens in ([0, 2], [1, 3, 4]))
    assert [len(row) for row in by_row[0].rows] == [1, 1]
    assert by_target[0].rows == (("", "-1e+05"), ("", "-1e+05", "-1e+05"))


def test_a_page_has_a_cell_for_each_number() -> None:
    page = page_of(pictured(columns=COLUMNS))
    table = page.partition("The columns of the batch")[2].partition("</table>")[0]
    assert re.findall(r'<td class="number">(.*?)</td>', table) == [
        *("-1.37", "0.512", "", "0.25", "", "-1", "nan", "", "8.36e-05"),
    ]
    assert re.findall(r'<th scope="row">(.*?)</th>', table) == [
        *("gains, row 0", "gains, row 1", "weights, row 0", "weights, row 1"),
    ]
    hostile = BatchColumn(HOSTILE, is_drawn=True, rows=((HOSTILE,),))
    assert "<script>alert" not in page_of(pictured(columns=(hostile,)))


def test_a_record_from_before_columns_were_kept_has_its_page() -> None:
    record = comparison_record(pictured(CASE))
    del record["columns"]
    (page,) = pages_of("x", record)
    assert "The columns of the batch" not in page.text
