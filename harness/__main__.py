"""Run the command line as `python -m harness`."""

import os
import sys

if __name__ == "__main__":
    # -m puts the current folder on the path. It may hold untrusted files, such as a bundle that
    # another person sent: its files are read as data, and no module is imported from it. Python
    # itself has already searched it for `harness`.
    if sys.path[0] == os.getcwd():  # noqa: PTH109 - pathlib may be a file in this folder as well
        del sys.path[0]

    from harness.cli import main

    sys.exit(main())
