"""The record of a session, on its way from a worker of pytest-xdist to the controller."""

import execnet

from harness.campaign.bias import Leaning, Leanings
from harness.plugin.session_record import SessionRecord


def test_leanings_to_either_side_survive_the_way_through_the_pipe_of_xdist() -> None:
    for lean in (0.01, -0.01):
        sent, received = SessionRecord(), SessionRecord()
        leaning = Leaning()
        leaning.add(lean)
        sent.leanings = {"mine.py:STEP": Leanings({"fp32": {"head": leaning}})}
        sent.verdicts["EQUAL"] = 3
        # The pipe refuses negative integers beyond 32 bits, which leanings contain.
        received.add_record(execnet.loads(execnet.dumps(sent.record())))
        assert received == sent
