"""How far to plan: performance by FQI iteration, and SwingUp, where it hardly matters."""

from collections.abc import Sequence

import numpy as np

from metastep.blocks import Stream
from metastep.controllers import MetaFQIController
from metastep.errors import InputError
from metastep.evaluation import Comparison, Method, TaskSource, metric_values
from metastep.experiments.folder import RunFolder
from metastep.experiments.reproduce.against import (
    fixed_lines,
    handful,
    main_line,
    stepsizes,
    tuned_step,
    with_fixed_grid,
)
from metastep.experiments.reproduce.gains import Shown, gain_remark, shown
from metastep.experiments.reproduce.judging import (
    AUC,
    MARGIN,
    alike,
    beats_every,
    gain,
    outcome_of,
    paired,
    table,
    title,
)
from metastep.experiments.reproduce.outcome import Outcome, Product, Verdict, number, within
from metastep.experiments.reproduce.panels import Line, Panel, curves, picture, points
from metastep.experiments.reproduce.workbench import Workbench
from metastep.experiments.stages import on_test_tasks
from metastep.fqi import Model
from metastep.rules import NGA

_SHAPED_BY = (TaskSource("trained", Stream.TRAIN), TaskSource("selected", Stream.VALIDATION))


def by_iteration(bench: Workbench, folder: RunFolder) -> tuple[Model, Comparison]:
    """Every iteration of a run's model on its test tasks; the method N=i is iteration i."""
    config, model = folder.config, bench.model(folder)
    numbers = range(1, len(model.q_functions) + 1)
    if len(numbers) < 2:
        raise InputError(f"fqi.iterations: {len(numbers)} must be at least 2 to compare iterations.")
    methods = [
        Method(f"N={i}", NGA, MetaFQIController(model, i), values={"iteration": i}, shaped_by=_SHAPED_BY)
        for i in numbers
    ]
    return model, bench.kept(folder, "iterations", lambda tracker: on_test_tasks(config, methods, tracker=tracker))


def best_validated(model: Model, among: Sequence[int]) -> int:
    """The iteration with the best score on the validation tasks; test tasks have no say."""
    scores = {curve.iteration: curve.score for curve in model.record.validation}
    return max(among, key=lambda iteration: scores.get(iteration, -np.inf))


def _curve_panel(name: str, drawn: Shown, selected: int) -> Panel:
    comparison, quantity = drawn
    numbers = range(1, len(comparison.methods) + 1)
    some = [int(number) for number in handful([*numbers], [selected])]
    lines = []
    for index, iteration in enumerate(some):
        returns, place = comparison.returns[comparison.index(f"N={iteration}")], index / max(len(some) - 1, 1)
        is_selected = iteration == selected
        label = f"N = {iteration}, selected" if is_selected else f"N = {iteration}"
        lines.append(Line(label, returns, ("cool", place), is_main=is_selected, has_band=False))
    return curves(name, lines, ylabel=quantity)


def _score_panel(name: str, drawn: Shown, selected: int) -> Panel:
    comparison, quantity = drawn
    return points(
        f"{name}: by iteration",
        metric_values(comparison, "auc"),
        list(range(1, len(comparison.methods) + 1)),
        xlabel="FQI iteration N",
        ylabel=f"{quantity} over updates",
        ring=(selected - 1, "selected"),
    )


def fig_iterations(bench: Workbench) -> Product:
    """Performance by iteration."""
    outcomes: list[Outcome] = []
    rows: list[dict[str, object]] = []
    above, below, kept = [], [], {}
    for env in bench.environments:
        folder = bench.folder(env)
        model, comparison = by_iteration(bench, folder)
        last, selected = len(model.q_functions), model.record.selected_iteration
        several, earlier = best_validated(model, range(2, last + 1)), best_validated(model, range(1, last))
        claims = (
            (
                several,
                1,
                f"Planning several updates ahead beats planning one: N = {several} (of 2 to {last}, best on validation "
                "tasks) against N = 1",
            ),
            (
                earlier,
                last,
                f"Too many iterations degrade: N = {earlier} (of 1 to {last - 1}, best on validation tasks) beats the last, "
                f"N = {last}",
            ),
        )
        for better, worse, claim in claims:
            outcome, found = beats_every(folder, comparison, f"N={better}", [f"N={worse}"], claim)
            outcomes.append(outcome)
            rows += table(folder, found)
        drawn = shown(folder, comparison)
        above.append(_curve_panel(title(folder), drawn, selected))
        below.append(_score_panel(title(folder), drawn, selected))
        kept[env] = comparison
    caption = (
        "Iterations of FQI on the test tasks: mean return (above) and mean return over the updates with 95 % intervals "
        "over tasks (below). The selected iteration was chosen on validation tasks."
    ) + gain_remark(bench)
    return Product(outcomes, [picture("fig-iterations", caption, [above, below])], {"differences": rows}, kept)


def fig_swingup(bench: Workbench) -> Product:
    """SwingUp: like a fixed step, whatever the iteration."""
    folder = bench.folder("swingup")
    comparison = with_fixed_grid(bench, folder)
    model, iterations = by_iteration(bench, folder)
    tuned, selected = tuned_step(comparison), model.record.selected_iteration
    claim = f"metaFQI does as well as the tuned fixed step (h = {tuned:g}), neither better nor worse"
    like_fixed, found = alike(folder, comparison, "metafqi", "fixed", claim, reference="fixed", judge=within)
    name = title(folder)
    panels = [
        curves(
            name,
            [
                main_line(comparison, f"metaFQI, N = {selected}"),
                *fixed_lines(comparison, handful(folder.config.compare.grids.fixed, [tuned]), tuned),
            ],
        ),
        stepsizes(name, comparison, tuned),
        _score_panel(name, shown(folder, iterations), selected),
    ]
    caption = (
        "SwingUp: return of metaFQI and of fixed steps, the step sizes metaFQI chose, and its mean return over the updates "
        "by FQI iteration, on the same test tasks, with 95 % intervals over tasks."
    )
    return Product(
        [like_fixed, _iterations_alike(folder, iterations)],
        [picture("fig-swingup", caption, [panels])],
        {"differences": table(folder, found)},
        {"swingup": comparison, "iterations": iterations},
    )


def _iterations_alike(folder: RunFolder, comparison: Comparison) -> Outcome:
    """The claim that no iteration differs from the first by more than the margin."""
    others = [name for name in comparison.names if name != "N=1"]
    margin = MARGIN * max(gain(comparison, "N=1"), 0.0)
    rows = paired(folder, comparison, "N=1", others)
    verdicts = [within(row.low, row.high, margin) for row in rows]
    farthest = max(rows, key=lambda row: abs(row.mean))
    verdict: Verdict = "holds" if set(verdicts) == {"holds"} else "not distinguishable"
    return outcome_of(
        folder,
        farthest,
        "All FQI iterations do about equally well",
        "does not hold" if "does not hold" in verdicts else verdict,
        f"the limit is {MARGIN:.0%} of the gain of N = 1, {number(margin)}",
        quantity=f"N = 1 minus the iteration farthest from it, {farthest.baseline}: {AUC}",
    )
