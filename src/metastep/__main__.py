"""`python -m metastep` and the `metastep` command."""

import os
import signal
import sys
from types import FrameType

# `-m` puts the working folder first: before anything else is imported, it goes last, behind what is installed.
sys.path[:] = [place for place in sys.path if place not in ("", os.getcwd())] + [os.getcwd()]


def interrupt(_: int, frame: FrameType | None) -> None:
    """Ctrl-C: as always, but in the middle of an import leave at once, since many libraries break on an exception there.

    Nothing is lost, since every file is written whole or not at all.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            shown_again = b"\x1b[?25h" if os.isatty(2) else b""  # a progress bar hides the cursor
            os.write(2, shown_again + b"stopped; the same command resumes where it was.\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def main() -> None:
    """Entry point; everything that takes time to import comes after Ctrl-C is taken care of."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    from metastep import cli

    cli.main()


if __name__ == "__main__":
    main()
