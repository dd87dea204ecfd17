"""Build the figures of reports without rendering them, which takes most of the time of a tiny run.

The files hold what the figures show, so that runs can be compared byte by byte. Tests of figures use the fixture `rendered`.
"""

from metastep.report import document
from metastep.report.document import Drawing, Picture

_RENDER = document.draw


def _draft(picture: Picture) -> Drawing:
    shown = [
        (axes.get_title(), axes.get_xlim(), axes.get_ylim(), [line.get_xydata().tolist() for line in axes.lines])
        for axes in picture.draw().axes
    ]
    svg = f"<svg xmlns='http://www.w3.org/2000/svg'><desc>{shown}</desc></svg>".encode()
    return {"svg": svg, "png": b"\x89PNG"}


def are_on() -> bool:
    """Whether figures are drafts in this process."""
    return document.draw is _draft


def switch(on: bool) -> None:
    """Draft figures from now on, or render them."""
    document.draw = _draft if on else _RENDER
