"""What a session judged reaches the controller of pytest-xdist."""

import execnet

from harness.campaign.bias import Leaning, Leanings
from harness.plugin.session_record import Judged


def test_a_lean_to_either_side_goes_through_the_pipe_of_xdist_and_comes_out_as_it_was() -> None:
    for lean in (0.01, -0.01):
        sent, received = Judged(), Judged()
        leaning = Leaning()
        leaning.add(lean)
        sent.leanings = {"mine.py:STEP": Leanings({"fp32": {"head": leaning}})}
        sent.verdicts["EQUAL"] = 3
        # Its whole numbers have four bytes, if they are negative.
        received.take_in(execnet.loads(execnet.dumps(sent.record())))
        assert received == sent
