"""Pages that explain what was found, drawn from documents and bundles and from nothing else.

1. A page is one file that stands alone: its style and script are in it, and its security policy
   lets it ask for nothing else. It can be read without the script.
2. A document may come from a stranger. Everything from it is escaped, and a damaged one is refused
   in one sentence (`NotDrawn`).
3. Pages are drawn without torch and without a rank. So a view is made in Python from the record,
   and a template only places it (`render.py`, `templates/`).
4. A page has bounds: a batch of too many tokens gets no map, and the page says so.

`pages.py` finds out which pages a document becomes, and `folder.py` writes them.
"""

from harness.report.html.folder import require_writable_folder, save
from harness.report.html.pages import NotDrawn, Page, pages_of

__all__ = ["NotDrawn", "Page", "pages_of", "require_writable_folder", "save"]
