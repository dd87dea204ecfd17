"""What `reproduce theory` makes of the measurements."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from metastep.experiments.coverage import Smoothness
from metastep.report.document import write_picture
from metastep.report.figures import picture
from paper import bounds
from paper.theory.measure import BoundRow, Effort
from paper.workbench import Workbench


def test_the_product_holds_tables_figure_and_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One environment without bounds is enough here; the command runs them all."""
    effort = Effort(num_policies=2, num_pairs=4, num_points=2, num_episodes=2_000, num_blocks=2)
    size = bounds._SIZES["tiny"]._replace(effort=effort, num_episodes=200, num_context_pairs=6)
    monkeypatch.setitem(bounds._SIZES, "tiny", size)
    monkeypatch.setattr(bounds, "_OTHERS", {"minigolf": bounds._OTHERS["minigolf"]})
    product = bounds.theory(Workbench(tmp_path, "tiny", 1))
    (outcome,) = product.outcomes
    assert (outcome.verdict, outcome.effect) == ("holds", 0.0)
    assert outcome.num == 2 * 4 * (2 + 1 + 3 + 2) + 2 * 4 * (2 + 1 + 6 + 2)
    assert len(product.tables["theory"]) == outcome.num
    first = product.tables["theory"][0]
    assert first["bound"] > 0.0
    assert 0.5 <= float(first["context"]) <= 1.1  # one coordinate, as text
    assert [(row["env"], row["num_context_pairs"]) for row in product.tables["theory-estimates"]] == [("minigolf", 6)]
    (drawn,) = product.pictures
    write_picture(drawn, tmp_path)
    assert ElementTree.parse(tmp_path / "theory.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "theory.png").read_bytes().startswith(b"\x89PNG")


def test_no_error_bar_of_the_figure_reaches_below_zero() -> None:
    """|J - J'| = 1 ± 3 is drawn from 0 to 4."""
    one = np.ones(1)
    smoothness = Smoothness(one, one, 3 * one, num_resolved=0, steepest=4.0, steepest_low=0.0, median=1.0)
    figure = picture("theory", "", [[bounds.smoothness_panel("minigolf", [smoothness])]]).draw("light")
    (bars,) = figure.axes[0].collections
    ((_, low), (_, high)) = bars.get_segments()[0]
    assert (low, high) == (0.0, 4.0)


def test_a_violation_is_reported() -> None:
    row = BoundRow("lqr", "gradient[1]", 0, (0.5,), (1.0,), 0.5, 1.0, 0.9, 1.1, np.nan, 2.0, 0.5, True)
    assert bounds.judge([row] * 48).verdict == "holds"
    outcome = bounds.judge([row] * 47 + [row._replace(holds=False)])
    assert (outcome.verdict, outcome.effect, outcome.num) == ("does not hold", 1.0, 48)
    assert outcome.detail == "largest share of the bound: lqr gradient 0.5"
