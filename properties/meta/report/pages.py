"""Pages of failures made by hand, and what stands on them."""

import re
from typing import Any

from harness.compare import Comparison
from harness.report import comparison_record
from harness.report.html import pages_of


def page_of(comparison: Comparison, **more: Any) -> str:
    """Return the page of a failure, with further fields in its record."""
    return pages_of("x", {**comparison_record(comparison), **more})[0].text


def cells_of(page: str) -> list[str]:
    """Return the signs of the first map, in the order of its cells."""
    first, _, _ = page.partition('<svg class="tokens')[2].partition("</svg>")
    return re.findall(r'role="gridcell"[^>]*class="cell s(.)[^>]*data-token', first)
