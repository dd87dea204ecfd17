"""What a report says of a comparison."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from metastep.envs.contexts import ContextSpace
from metastep.evaluation import Comparison, TuningTable, baselines, differences
from metastep.evaluation.intervals import mean_interval
from metastep.experiments.config import load
from metastep.experiments.reporting import print_comparison
from metastep.fqi import ExtraTrees, MetaFQI, Model, ObservationPart, TrainingData, model_from
from metastep.mdp.dataset import Counts
from metastep.report import figures
from metastep.report.compose import compose
from metastep.report.document import Command, Document, Heading, Paragraph, Picture, Table, draw
from metastep.report.tables import Findings, Fitted, interval, number
from tests.evaluation.test_statistics import make_comparison, simulated
from tests.fqi.problems import HIGH, transitions

NAMES = ("metafqi", "fixed", "hoof", "oracle")


def small_model() -> Model:
    regressor = ExtraTrees(trees=2, min_samples_split=0.2)
    fitted = MetaFQI(1, regressor, num_stepsizes=11, stepsize_high=HIGH).fit(transitions(100, 3, 0))
    return model_from(
        fitted,
        setting={"env": "nav2d"},
        observation=[ObservationPart("theta", 2), ObservationPart("context", 1)],
        training_data=TrainingData(100, 0, "0" * 64),
    )


def findings(comparison: Comparison, **config: Any) -> Findings:
    settings = load("nav2d", "quick", ["compare.num_resamples=500"]).to_dict()
    for key, value in config.items():
        section, _, name = key.partition("__")
        settings[section][name] = value
    return Findings(
        name="test",
        command="metastep run test",
        config=settings,
        comparison=comparison,
        context_space=ContextSpace(("x",), (0.0,), (1.0,)),
        fitted={
            comparison.names[0]: Fitted(
                model=small_model(),
                validation=make_comparison(simulated((0.0,), 10), ("N=1",)),
                counts=Counts(transitions=100, flagged=0, excluded=0, num_steps=1e6),
                starts=np.zeros((2, 3), np.float32),
                later=np.ones((2, 3), np.float32),
                updates=2,
                config=settings,
            )
        },
    )


def compared(num_tasks: int = 30) -> Comparison:
    comparison = make_comparison(simulated((0.5, 0.0, -0.5, 2.0), num_tasks), NAMES, yardsticks=("oracle",))
    looks = [baselines.make(name) for name in NAMES]
    named = zip(comparison.methods, looks, strict=True)
    methods = tuple(record._replace(label=look.label, colour=look.colour) for record, look in named)
    return dataclasses.replace(comparison, methods=methods)


def with_divergence(comparison: Comparison) -> Comparison:
    """HOOF diverges on task 3 at once, where another method has the worst return."""
    returns = comparison.returns.copy()
    returns[1, 3, 2] -= 50.0
    returns[2, 3, 1:] = np.nan
    return dataclasses.replace(comparison, returns=returns)


def table(document: Document, name: str) -> Table:
    return next(part for part in document.parts if isinstance(part, Table) and part.name == name)


def prose(document: Document) -> str:
    return " ".join(part.text for part in document.parts if isinstance(part, Paragraph))


def test_the_table_has_the_difference_in_the_final_return() -> None:
    comparison = compared()
    document = compose(findings(comparison))
    shown = table(document, "differences")
    column = shown.header.index("metaFQI minus it, final return")
    for row, cells in zip(differences(comparison, "metafqi", metric="final"), shown.rows, strict=True):
        assert cells[0] == comparison.label(row.baseline)
        assert cells[column].startswith(f"{number(row.mean)} [")
        assert cells[column + 1] == row.verdict
    assert "diverged tasks" not in table(document, "comparison").header


def test_diverged_tasks_are_shown_and_drawn() -> None:
    document = compose(findings(with_divergence(compared())))
    shown = table(document, "comparison")
    assert [cells[shown.header.index("diverged tasks")] for cells in shown.rows] == ["0", "0", "1", "0"]
    assert "not finite" in prose(document)
    picture = next(part for part in document.parts if isinstance(part, Picture) and part.name == "learning-curves")
    lines = [line.get_ydata() for line in picture.draw().axes[0].get_lines()]
    returns = with_divergence(compared()).returns.astype(np.float64)
    worst = np.nanmin(returns[:, 3])
    filled = np.where(np.isnan(returns), worst, returns)
    np.testing.assert_allclose(lines[2], filled[2].mean(axis=0), rtol=1e-6)


def test_a_task_is_never_dropped_from_a_mean() -> None:
    values = np.array([[1.0, 2.0, 9.0], [3.0, np.nan, 5.0], [np.nan, np.inf, -np.inf]])
    mean, low, high = figures.mean_and_interval(values)
    filled = np.array([[1.0, 2.0, 9.0], [3.0, 3.0, 5.0], [1.0, 1.0, 1.0]])
    np.testing.assert_allclose(mean, filled.mean(axis=0))
    for ends, same in zip((low, high), mean_interval(filled.T), strict=True):
        np.testing.assert_allclose(ends, same)
    lines = [figures.Line("fixed", values), figures.Line("adam", filled)]
    assert draw(figures.picture("diverged", "", [[figures.curves("diverged", lines)]]))["svg"]


@pytest.mark.parametrize("diverged", [False, True])
def test_the_terminal_shows_the_numbers_of_the_report(diverged: bool, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    comparison = with_divergence(compared()) if diverged else compared()
    config = load("nav2d", "quick", ["seed=3", "compare.num_resamples=50"])
    print_comparison(comparison, config)
    printed = capsys.readouterr().out
    assert ("diverged tasks" in printed) == diverged
    for row in differences(comparison, "metafqi", seed=3, num_resamples=50):
        assert interval(row.mean, row.low, row.high).replace("\N{MINUS SIGN}", "-") in printed


def test_verdicts_are_whole_in_a_narrow_terminal(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wide = dataclasses.replace(compared(), returns=compared().returns * 1000.0)
    equal = dataclasses.replace(wide, returns=np.repeat(wide.returns[:1], len(NAMES), axis=0))
    print_comparison(equal, load("nav2d", "quick", ["compare.num_resamples=50"]))
    printed = capsys.readouterr().out
    assert printed.count("not distinguishable") == 2
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_only_a_family_has_tasks_never_seen() -> None:
    assert "tasks it had never seen" in prose(compose(findings(compared())))
    document = compose(findings(compared(), env__fixed_context=[0.1, 0.2]))
    assert "step-size-map" not in {part.name for part in document.parts if isinstance(part, Picture)}
    assert "Recommended first step by task" not in {part.text for part in document.parts if isinstance(part, Heading)}
    fixed = prose(document)
    assert "never seen" not in fixed
    assert "30 new first policies in the one task it was trained on" in fixed


def test_effective_sample_sizes_are_in_the_bookkeeping() -> None:
    sizes = np.array([[17.0] * 5 + [90.0, np.nan]], np.float32)
    comparison = dataclasses.replace(compared(), diagnostics={"hoof/effective_sample_size": sizes})
    rows = dict(table(compose(findings(comparison, rollout__num_episodes=200)), "bookkeeping").rows)
    assert rows["effective sample size, HOOF"] == "17.0 of 200 episodes, median over tasks and updates, 1 not finite"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("metastep run a", "same command repeats"),
        ("one\ntwo", "same commands repeat"),
        ("", "setting is in config.json"),
    ],
)
def test_the_command_is_shown_where_it_is_known(command: str, words: str) -> None:
    document = compose(dataclasses.replace(findings(compared()), command=command, fitted={}))
    assert words in prose(document)
    assert [part.text for part in document.parts if isinstance(part, Command)] == ([command] if command else [])


def tuning(method: str, best: int) -> TuningTable:
    """A search over three step sizes."""
    scores = np.arange(3) == best
    points = np.array([[0.1], [0.5], [1.0]])
    return TuningTable(
        method, ("stepsize",), points, scores.astype(np.float64), np.ones(3), np.zeros(3, int), 5, 0, 600.0
    )


def test_tuning_at_an_edge_is_said_where_the_result_is(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    comparison = dataclasses.replace(compared(), tuning=(tuning("fixed", 2), tuning("hoof", 1)))
    document = compose(findings(comparison))
    headline = next(part.text for part in document.parts if isinstance(part, Paragraph))
    assert "with baselines that were tuned on 5 tasks only." in headline
    assert headline.endswith(
        "Tuned at an edge of the grid, so that a wider one might do better: fixed step (stepsize)."
    )
    shown = table(document, "differences")
    column = shown.header.index("tuned at an edge of its grid")
    assert [cells[column] for cells in shown.rows] == ["stepsize", ""]
    print_comparison(comparison, load("nav2d", "quick", ["compare.num_resamples=50"]))
    assert "a wider one might do better: fixed step (stepsize)\n" in capsys.readouterr().out
    inside = dataclasses.replace(comparison, tuning=(tuning("hoof", 1),))
    assert "edge" not in prose(compose(findings(inside)))
    assert "tuned at an edge of its grid" not in table(compose(findings(inside)), "differences").header
