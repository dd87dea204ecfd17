"""What a report says of a comparison, and shows of what was chosen."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from metastep.envs.contexts import ContextSpace
from metastep.evaluation import Comparison, MethodRecord, TuningTable, baselines, differences
from metastep.evaluation.intervals import mean_interval
from metastep.experiments.config import load
from metastep.experiments.reporting import print_comparison
from metastep.fqi import ExtraTrees, MetaFQI, Model, ObservationPart, TrainingData, model_from, save_model
from metastep.mdp.dataset import Counts
from metastep.mdp.history import Transitions
from metastep.report import figures, tables
from metastep.report.compose import compose
from metastep.report.document import Command, Document, Heading, Paragraph, Picture, Table, draw
from metastep.report.figures import PALETTE, PAPER, QUIET, SPARE, TEXT, colour_of
from metastep.report.results import some_tasks
from metastep.report.tables import Findings, Fitted, Searched, about, interval, number, target_of
from metastep.rules.spaces import Range
from tests.evaluation.test_statistics import make_comparison, simulated
from tests.search.test_model import model as searched_model

NAMES = ("metafqi", "fixed", "hoof", "oracle")
DIRECTIONS = ("natural", "plain", "never")
TASKS, UPDATES = 30, 4
CHOICES: Any = {"stepsize": "log", "gradient_steps": "log", "clip_range": "log", "gae_lambda": "linear"}
CHOICES |= {"entropy_weight": "log", "critic_rate": "log"}


def small_model(names: tuple[str, str] = ("theta", "context"), *, has_menu: bool = False) -> Model:
    rng = np.random.default_rng(0)
    chosen = np.stack([rng.integers(0, 3, 300), 10.0 ** rng.uniform(-3, 0, 300)], 1).astype(np.float32)
    observed = rng.normal(size=(300, 3)).astype(np.float32)
    data = Transitions(observed, chosen if has_menu else chosen[:, 1], observed[:, 0], observed)
    menu = {name: Range(1e-3, 1.0, "divergence") for name in DIRECTIONS} if has_menu else None
    fitted = MetaFQI(1, ExtraTrees(trees=2, min_samples_split=0.2), num_stepsizes=11, menu=menu).fit(data)
    parts = [ObservationPart(name, size) for name, size in zip(names, (2, 1), strict=True)]
    return model_from(fitted, setting={"env": "x"}, observation=parts, training_data=TrainingData(300, 0, "0" * 64))


def findings(comparison: Comparison, **config: Any) -> Findings:
    settings = load("nav2d", "quick", ["compare.num_resamples=500"]).to_dict()
    for key, value in config.items():
        section, _, name = key.partition("__")
        settings[section][name] = value
    validation, starts = make_comparison(simulated((0.0,), 10), ("N=1",)), np.zeros((2, 3), np.float32)
    counts = Counts(transitions=100, flagged=0, excluded=0, num_steps=1e6)
    fitted = {comparison.names[0]: Fitted(small_model(), validation, counts, starts, starts + 1, 2, settings)}
    return Findings("test", "metastep run test", settings, comparison, ContextSpace(("x",), (0.0,), (1.0,)), fitted)


def compared(num_tasks: int = 30) -> Comparison:
    comparison = make_comparison(simulated((0.5, 0.0, -0.5, 2.0), num_tasks), NAMES, yardsticks=("oracle",))
    named = zip(comparison.methods, [baselines.make(name) for name in NAMES], strict=True)
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
    lines = [line.get_ydata() for line in drawn(document, "learning-curves").axes[0].get_lines()]
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
    points, scores = np.array([[0.1], [0.5], [1.0]]), (np.arange(3) == best).astype(np.float64)
    return TuningTable(method, ("stepsize",), points, scores, np.ones(3), np.zeros(3, int), 5, 0, 600.0)


def test_tuning_at_an_edge_is_said_where_the_result_is(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    comparison = dataclasses.replace(compared(), tuning=(tuning("fixed", 2), tuning("hoof", 1)))
    document = compose(findings(comparison))
    headline = next(part.text for part in document.parts if isinstance(part, Paragraph))
    assert "with baselines that were tuned on 5 tasks only." in headline
    edge = "Tuned at an edge of the grid, so that a wider one might do better: fixed step (stepsize)."
    assert headline.endswith(edge)
    shown = table(document, "differences")
    column = shown.header.index("tuned at an edge of its grid")
    assert [cells[column] for cells in shown.rows] == ["stepsize", ""]
    print_comparison(comparison, load("nav2d", "quick", ["compare.num_resamples=50"]))
    assert "a wider one might do better: fixed step (stepsize)\n" in capsys.readouterr().out
    inside = dataclasses.replace(comparison, tuning=(tuning("hoof", 1),))
    assert "edge" not in prose(compose(findings(inside)))
    assert "tuned at an edge of its grid" not in table(compose(findings(inside)), "differences").header


def with_menu(comparison: Comparison) -> Comparison:
    """The first method chooses among directions, by divergence, the second has a fixed divergence; the others have lengths."""
    rng = np.random.default_rng(1)
    first, second, *others = comparison.methods
    menu = first._replace(name="metastep", controller="metafqi", directions=DIRECTIONS, scale="divergence")
    direction = comparison.direction.copy()
    direction[0] = rng.integers(0, 2, direction[0].shape)
    steps = comparison.hyperparameters.copy()
    steps[:2] = 10.0 ** rng.uniform(-3, 0, steps[:2].shape)
    context = rng.uniform(size=(comparison.num_tasks, 1)).astype(np.float32)
    changed = {"methods": (menu, second._replace(scale="divergence"), *others), "context": context}
    return dataclasses.replace(comparison, direction=direction, hyperparameters=steps, **changed)


def menu_findings(**changes: Any) -> Findings:
    found = findings(with_menu(compared(TASKS)))
    fitted = {name: one._replace(model=small_model(has_menu=True)) for name, one in found.fitted.items()}
    return dataclasses.replace(found, fitted=fitted, **changes)


def drawn(document: Document, name: str) -> Figure:
    picture = next(part for part in document.parts if isinstance(part, Picture) and part.name == name)
    return picture.draw()


@pytest.mark.parametrize("coordinates", [1, 2])
def test_directions_are_shown_over_updates_and_by_task(coordinates: int) -> None:
    found = menu_findings()
    names = ("x", "y")[:coordinates]
    space = ContextSpace(names, (0.0,) * coordinates, (1.0,) * coordinates)
    context = np.random.default_rng(0).uniform(size=(TASKS, coordinates)).astype(np.float32)
    comparison = dataclasses.replace(found.comparison, context=context, context_names=names)
    document = compose(dataclasses.replace(found, comparison=comparison, context_space=space, fitted={}))
    shares, by_task = drawn(document, "directions").axes
    texts = {text.get_text() for text in shares.texts}
    assert texts == {"natural", "plain"}  # the one that was never followed is not named
    points = by_task.collections[0].get_offsets()
    assert len(points) == (TASKS if coordinates == 2 else TASKS * UPDATES)
    assert len(drawn(document, "steps-by-task").axes) == coordinates


def test_divergences_and_lengths_have_axes_of_their_own() -> None:
    figure = drawn(compose(menu_findings()), "step-sizes")
    divergence, length = figure.axes
    assert (divergence.get_yscale(), length.get_yscale()) == ("log", "linear")
    assert {text.get_text() for text in divergence.texts} == {"metaFQI", "fixed step"}
    assert {text.get_text() for text in length.texts} == {"HOOF", "greedy oracle"}
    comparison = with_menu(compared(TASKS))
    mean = np.exp(np.log(comparison.hyperparameters[0, :, :, 0].astype(np.float64)).mean(axis=0))
    np.testing.assert_allclose(divergence.get_lines()[0].get_ydata(), mean, rtol=1e-5)


@pytest.mark.parametrize("scale", ["linear", "mixed"])
def test_lengths_along_several_directions_are_not_averaged(scale: str) -> None:
    comparison = with_menu(compared(TASKS))
    lengths = comparison.methods[0]._replace(scale=scale)
    changed = dataclasses.replace(comparison, methods=(lengths, *comparison.methods[1:]))
    for axes in drawn(compose(menu_findings(comparison=changed)), "step-sizes").axes:
        assert lengths.label not in {text.get_text() for text in axes.texts}


def with_choices(comparison: Comparison) -> Comparison:
    """The first method chooses all of PPO's hyperparameters, the second holds them constant, the others have a rate only."""
    steps = np.full((*comparison.hyperparameters.shape[:3], len(CHOICES)), np.nan, np.float32)
    steps[0] = np.random.default_rng(2).uniform(0.1, 1.0, steps[0].shape)
    steps[1], steps[2:, :, :, 0] = 0.5, 0.01
    choices = [tuple(CHOICES.items())] * 2 + [()] * len(comparison.methods[2:])
    methods = [record._replace(choices=own) for record, own in zip(comparison.methods, choices, strict=True)]
    return dataclasses.replace(comparison, methods=tuple(methods), hyperparameters=steps)


def test_everything_that_is_chosen_has_a_panel() -> None:
    comparison = with_choices(compared(TASKS))
    document = compose(findings(comparison))
    assert not [part for part in document.parts if isinstance(part, Picture) and part.name == "step-sizes"]
    axes = drawn(document, "hyperparameters").axes
    titles = ["step size", *(name.replace("_", " ") for name in [*CHOICES][1:])]
    assert [each.get_title(loc="left") for each in axes] == titles
    assert [each.get_yscale() for each in axes] == [*CHOICES.values()]
    for index, panel in enumerate(axes):
        # All methods have a step, two have the rest, and the first has bands: the middle half and nine tenths of the tasks.
        assert len(panel.lines) == (len(comparison.methods) if index == 0 else 2)
        assert len(panel.collections) == 2
        chosen = comparison.hyperparameters[0, :, :, index]
        np.testing.assert_allclose(panel.lines[0].get_ydata(), np.median(chosen, axis=0), rtol=1e-5)
        corners = panel.collections[1].get_paths()[0].vertices
        for share in (0.25, 0.75):
            assert np.isclose(corners[:, 1], np.quantile(chosen[:, 2], share), rtol=1e-4).any()


def test_single_tasks_run_from_the_worst_to_the_best() -> None:
    comparison = with_menu(compared(TASKS))
    best = tables.best_baseline(comparison, "metastep")
    assert best == "fixed"
    auc = comparison.returns[:, :, 1:].astype(np.float64).mean(axis=2)
    ahead = auc[0] - auc[comparison.index(best)]
    shown = some_tasks(comparison, "metastep")
    assert len(shown) == 6
    assert (shown[0], shown[-1]) == (ahead.argmin(), ahead.argmax())
    assert np.all(np.diff(ahead[shown]) >= 0.0)
    figure = drawn(compose(menu_findings()), "single-tasks")
    visible = [axes for axes in figure.axes if axes.get_visible()]
    assert len(visible) == 12  # curves and steps of each
    np.testing.assert_allclose(visible[0].get_lines()[-1].get_ydata(), comparison.returns[0, shown[0]], rtol=1e-6)


def test_the_learned_method_that_chooses_most_is_the_target() -> None:
    comparison = compared(TASKS)

    def target(*methods: MethodRecord) -> str:
        return target_of(dataclasses.replace(comparison, methods=methods))

    first, second, third, *rest = comparison.methods
    assert target(first, second, third, *rest) == "metafqi"  # the first
    assert target(first, second, third._replace(controller="metafqi"), *rest) == "hoof"
    learned = [record._replace(controller="metafqi") for record in (first, second, third)]
    learned[1] = learned[1]._replace(directions=DIRECTIONS)
    assert target(*learned, *rest) == "fixed"
    learned[2] = learned[2]._replace(name="metastep")
    assert target(*learned, *rest) == "metastep"
    assert tables.yardstick_of(comparison, "metafqi") == "oracle"


def test_values_of_a_menu_have_a_line_for_each_direction_and_a_ring_at_the_choice() -> None:
    found = menu_findings()
    model = small_model(has_menu=True)
    figure = drawn(compose(found), "values")
    states = np.concatenate([one for fitted in found.fitted.values() for one in (fitted.starts, fitted.later)])
    values, chosen = model.values(states), model.act(states)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert len(panels) == len(states)
    for axes, rows, (direction, step) in zip(panels, values, chosen, strict=True):
        assert axes.get_xscale() == "log"
        lines = [line for line in axes.get_lines() if line.get_marker() != "o"]
        for line, row in zip(lines, rows, strict=True):
            np.testing.assert_allclose(line.get_ydata(), row)
        (ring,) = (line for line in axes.get_lines() if line.get_marker() == "o")
        np.testing.assert_allclose(ring.get_xdata()[0], step, rtol=1e-4)
        np.testing.assert_allclose(ring.get_ydata()[0], rows[int(direction)].max())


@pytest.mark.parametrize(
    ("model", "answer"),
    [
        (small_model(), "stepsize"),
        (small_model(has_menu=True), "proposal"),
        (small_model(("theta", "return"), has_menu=True), "proposal"),  # a keyword among the names
    ],
)
def test_the_five_lines_run(model: Model, answer: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    found = findings(compared())
    fitted = {name: one._replace(model=model) for name, one in found.fitted.items()}
    parts = compose(dataclasses.replace(found, fitted=fitted)).parts
    code = next(part.text for part in parts if isinstance(part, Command) and "load_model" in part.text)
    assert len(code.splitlines()) <= 5
    save_model(model, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"theta": np.zeros(2), "context": np.zeros(1)}
    names["observation"] = {"theta": np.zeros(2), "return": np.zeros(1)}
    exec(code, names)
    assert str(names[answer]) in capsys.readouterr().out
    if answer == "proposal":
        assert names["proposal"].direction in DIRECTIONS


def test_a_model_that_does_not_win_comes_with_suggestions() -> None:
    def advice(shift: float, **changes: Any) -> tuple[str, dict[str, str]]:
        comparison = make_comparison(simulated((shift, 0.0), 40), ("metafqi", "fixed"))
        learned = comparison.methods[0]._replace(controller="metafqi")
        changes = {"methods": (learned, comparison.methods[1]), "tuning": (tuning("fixed", 1),)} | changes
        document = compose(findings(dataclasses.replace(comparison, **changes)))
        found = [part for part in document.parts if isinstance(part, Table) and part.name == "advice"]
        return prose(document), dict(found[0].rows) if found else {}

    assert advice(3.0)[1] == {}
    steps = np.full((2, 40, 4, 1), 1.0, np.float32)  # the largest that the model has
    steps[1] = 0.3
    text, rows = advice(-3.0, hyperparameters=steps)
    assert re.search(r"metafqi minus fixed is \W[23]\.\d+ \[.*where its median step is 1 and the other's 0.3", text)
    num = load("nav2d", "quick").collect.num_meta_episodes
    assert rows == {
        "100 % of its updates have the highest stepsize, 1": "--set meta.stepsize_high=3",
        f"it was trained on 1.0 M steps, num_meta_episodes = {num}": f"--set collect.num_meta_episodes={4 * num}",
        "fixed wins with stepsize 0.5": "use it until the model is better",
    }
    _, rows = advice(-0.1)
    (tie,) = [value for key, value in rows.items() if key.startswith("40 test tasks do not resolve")]
    assert int(tie.removeprefix("--set compare.num_tasks=")) > 40
    validation = make_comparison(simulated((0.0, 0.0), 10), ("constant", "feedback"))
    search = Searched(searched_model(), validation, {"constant": 2e6}, 2e6, {"search": {"generations": 7}})
    comparison = make_comparison(simulated((-3.0, 0.0), 40), ("update", "fixed"))
    learned = comparison.methods[0]._replace(controller="searched")
    found = findings(dataclasses.replace(comparison, methods=(learned, comparison.methods[1])))
    found.config["compare"]["methods"] = [{"name": "update", "model": "update"}]
    rows = dict(table(compose(dataclasses.replace(found, fitted={}, searched={"update": search})), "advice").rows)
    assert rows["it was trained on 2.0 M steps, generations = 7"] == "--set models.update.search.generations=28"
    assert rows["the best two candidates tie on 10 validation tasks"] == "--set models.update.selection.num_tasks=40"


def test_what_each_method_cost() -> None:
    comparison = compared()
    methods = list(comparison.methods)
    methods[2] = methods[2]._replace(training_steps=5e6)
    methods[3] = methods[3]._replace(trials=10)  # the oracle
    steps = np.full(comparison.num_steps.shape, 100.0)
    changed = dataclasses.replace(comparison, methods=tuple(methods), num_steps=steps)
    document = compose(findings(changed))
    shown = table(document, "costs")
    assert "spends 10 times the samples" in prose(document)
    rows = {row[0]: dict(zip(shown.header, row, strict=True)) for row in shown.rows}
    assert rows["metaFQI"]["training"] == "1.0 M"  # of its data
    assert rows["HOOF"]["training"] == "5.0 M"  # its own
    assert rows["fixed step"] == {"method": "fixed step", "training": "", "test": "3.0 k", "trials": ""}
    assert rows["greedy oracle"]["trials"] == "24.0 k"  # 10 batches before each of 4 updates, of 5 batches 3000 steps


def test_levels_and_cost_of_a_search() -> None:
    model, validation = searched_model(), make_comparison(simulated((0.0, 1.0), 10), ("constant", "feedback"))
    search = Searched(model, validation, {"constant": 2e6, "feedback": 3e6}, 4.2e6, {}, seconds=12.34)
    found = dataclasses.replace(findings(compared()), searched={"update": search})
    # A report of a fitted model has no times.
    assert "seconds" not in table(compose(findings(compared())), "costs").header
    document = compose(found)
    assert table(document, "levels").rows == [
        ("constant", "diverged", "2.0 M", ""),
        ("feedback", "1 ± 0.1", "3.0 M", "selected"),
    ]
    costs = table(document, "costs")
    last = dict(zip(costs.header, costs.rows[-1], strict=True))
    assert (last["method"], last["training"], last["seconds"]) == ("search of update", "4.2 M", "12.3")


def test_every_method_has_its_paragraph() -> None:
    document = compose(menu_findings())
    shown = table(document, "methods")
    assert [row[0] for row in shown.rows] == [record.label for record in menu_findings().comparison.methods]
    assert "ECML PKDD 2023" in shown.rows[0][1]
    mine = MethodRecord("mine", "mine", "", "nga", "wobble", {}, False)
    assert about(mine) == "The controller wobble with the update rule nga."
    assert about(mine._replace(controller="hoof", rule="adam")).endswith("Here with the update rule adam.")
    assert "cannot be followed" in prose(document)  # what a flag means
    settings = dict(table(document, "settings").rows)
    assert settings["discount of rewards"] == "0.99"
    models = dict(table(document, "models").rows)
    assert models["directions"] == "natural, plain, never"
    assert models["steps"] == "0.001 to 1 of KL divergence"


def test_every_baseline_has_a_colour_and_a_paragraph_of_its_own() -> None:
    made = {name: baselines.make(name) for name in baselines.names()}
    texts = [about(MethodRecord(name, name, "", "nga", spec.controller, {}, False)) for name, spec in made.items()]
    assert len(set(texts)) == len(texts)
    assert not any("Here with" in text or "The controller" in text for text in texts)
    # Two methods without a colour get one of their own.
    colours = [*(spec.colour for spec in made.values()), "", ""]
    records = [MethodRecord(f"m{i}", "", colour, "nga", "fixed", {}, False) for i, colour in enumerate(colours)]
    comparison = dataclasses.replace(menu_findings().comparison, methods=tuple(records))
    assert len({colour_of(comparison, record.name) for record in records}) == len(records)


def test_the_profile_starts_at_the_share_of_tasks_that_are_won() -> None:
    comparison = with_menu(compared(TASKS))
    auc = comparison.returns[:3, :, 1:].astype(np.float64).mean(axis=2)
    within = drawn(compose(menu_findings()), "spread").axes[2]
    for line, row in zip(within.get_lines(), auc, strict=True):
        assert line.get_ydata()[0] == pytest.approx((row == auc.max(axis=0)).mean())


def test_colours_can_be_read() -> None:
    weights = (0.2126, 0.7152, 0.0722)
    for colour in (*PALETTE, *SPARE, TEXT, QUIET):
        assert abs(np.array(to_rgb(colour)) @ weights - np.array(to_rgb(PAPER)) @ weights) > 0.2


def test_a_report_where_all_tasks_and_methods_are_alike() -> None:
    found = menu_findings()
    equal = dataclasses.replace(found.comparison, returns=np.full_like(found.comparison.returns, -3.0))
    parts = compose(dataclasses.replace(found, comparison=equal)).parts
    pictures = {part.name: part.draw() for part in parts if isinstance(part, Picture)}
    assert len(pictures) == sum(isinstance(part, Picture) for part in parts)  # no figure is written over another
    assert {"directions", "step-sizes", "steps-by-task", "single-tasks", "spread", "values"} <= pictures.keys()
