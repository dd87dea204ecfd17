"""`python -m metastep` is the `metastep` command."""

import os
import sys

# `-m` puts the working folder first: before anything else is imported, it goes last, behind what is installed.
sys.path[:] = [place for place in sys.path if place not in ("", os.getcwd())] + [os.getcwd()]

from metastep.cli import main  # noqa: E402

main()
