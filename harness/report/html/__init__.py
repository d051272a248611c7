"""Pages that explain what was found: drawn from documents and bundles, and from nothing else."""

from harness.report.html.folder import may_write, save
from harness.report.html.pages import NotDrawn, Page, pages_of

__all__ = ["NotDrawn", "Page", "may_write", "pages_of", "save"]
