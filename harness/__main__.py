"""`python -m harness`."""

import os
import sys

if __name__ == "__main__":
    # -m puts the current folder there, where a stranger's files may lie: they are read, and no
    # module is imported from them. Before this line Python itself has looked there for `harness`.
    if sys.path[0] == os.getcwd():  # noqa: PTH109 - pathlib may be a stranger's as well
        del sys.path[0]

    from harness.cli import main

    sys.exit(main())
