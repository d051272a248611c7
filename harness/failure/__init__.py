"""Confirm failures, shrink them, keep them as bundles, replay them, and write them as scripts.

Terms:

    mark      what a failure is recognised by: its verdict, its first key or fault, its name
    history   the cases that the same ranks must have run before, for the failure to show
    bundle    a folder with one failure, which can be carried to another machine
    script    one Python file with the step, the case and the wrong numbers, for a bug report

The parts, in the order in which a failure passes through them:

1. Confirm (`confirm.py`): a failure counts for its case only if ranks that ran nothing else show
   it too. Otherwise it is named for what it needs: a history, or more ranks than its case has.
   If it still passes, it is named as not repeatable.
2. Shrink (`shrink.py`, `shrink_passes.py`): passes propose smaller cases; one is taken if it still
   fails in the same way. They know nothing of how the case was generated, so a case line that a
   user typed shrinks like a drawn one. Shrinking uses warm ranks, and only its result is
   confirmed, because fresh ranks cost a launch.
3. Shrink the history (`shrink_history.py`): every try needs fresh ranks, since warm ones may
   remember another case. So it tries few cases, and the smallest pairs of cases first.
4. Bundle (`bundle/`): a record, the tensors that differ, a text for people, and the last output of
   each rank. All but its case lines is bounded in size, and nothing in it can run: no pickle.
5. Replay (`replay.py`): trace the case again after its history, and compare its mark with that in
   the bundle: the same, changed or gone.
6. Script (`script.py`, `script_runtime.py`): a maintainer runs one file, without our commands. It
   holds the user's file, or the part of a library's wiring that the step needs
   (`source_slice.py`).

`smallest.py` joins 1 to 3. `same_numbers.py` cites known bugs that give the same wrong numbers.
"""
