"""A comparison as text, as a JSON object, and as pages: all from one comparison or its record.

1. `text.py` explains a comparison in labelled lines, from the candidate to the command that
   replays it. They name places and numbers, so that a reader understands them without a run.
2. `record.py` makes the JSON object that documents and bundles hold, with that text in it.
3. `brief.py` makes a short text for the output of pytest, where several failures stand one after
   another: the name first, then the lines that fit into the room of one failure.
4. `html/` draws pages from records alone, without torch and without a rank. So a page can be made
   later, and on another machine.
"""

from harness.report.brief import brief, headline
from harness.report.record import comparison_record
from harness.report.replay_command import replay
from harness.report.text import explain, explain_no_start

__all__ = [
    "brief",
    "comparison_record",
    "explain",
    "explain_no_start",
    "headline",
    "replay",
]
