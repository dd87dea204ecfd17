"""metaFQI against fixed steps, tuned baselines and decaying rates (figures 2 and 3, and the appendix on schedules)."""

from collections.abc import Callable, Sequence

import numpy as np

from metastep.controllers import Fixed
from metastep.evaluation import Comparison, Difference, Method, metafqi_method
from metastep.experiments.build import build_mdp, updates_collected
from metastep.experiments.folder import RunFolder
from metastep.experiments.reproduce.gains import gain_remark, is_shown_as_gain, known_task, shown
from metastep.experiments.reproduce.judging import beats_every, table, title
from metastep.experiments.reproduce.outcome import Outcome, Product
from metastep.experiments.reproduce.panels import Line, Panel, curves, picture, whiskers
from metastep.experiments.reproduce.workbench import Workbench
from metastep.experiments.stages import join, on_test_tasks, tuned
from metastep.progress import Tracker
from metastep.report.style import title_of
from metastep.rules import NGA

BASELINES = ("fixed", "rmsprop", "adam", "hoof", "metagrad")
_SHOWN_STEPS = 5


def step_name(stepsize: float) -> str:
    """How a fixed step is called."""
    return f"h = {stepsize:g}"


def fixed_method(stepsize: float) -> Method:
    """Natural gradient with a step that nobody tuned."""
    return Method(step_name(stepsize), NGA, Fixed(stepsize), values={"stepsize": stepsize})


def handful(values: Sequence[float], must: Sequence[float], num: int = _SHOWN_STEPS) -> list[float]:
    """At most `num` of the values, evenly over their order, among them those that must be."""
    ordered = sorted({*values, *must})
    chosen = {*must}
    # From the sparsest choice to the fullest: keep the last that still fits.
    for count in range(2, num + 1):
        spread = {ordered[round(place)] for place in np.linspace(0, len(ordered) - 1, count)}
        chosen = {*must, *spread} if len({*must, *spread}) <= num else chosen
    return sorted(chosen)


def with_fixed_grid(bench: Workbench, folder: RunFolder) -> Comparison:
    """metaFQI, the tuned fixed step, and every fixed step of the grid on the test tasks."""
    config = folder.config
    methods = [fixed_method(step) for step in config.compare.grids.fixed]
    steps = bench.kept(folder, "fixed-grid", lambda tracker: on_test_tasks(config, methods, tracker=tracker))
    return join([bench.tested(folder, "metafqi", "fixed"), steps])


def for_longer(
    bench: Workbench, folder: RunFolder, num_updates: int, choose: Callable[[float], Sequence[float]]
) -> Comparison:
    """metaFQI, the fixed step tuned for so many updates, and the fixed steps that `choose` takes, given the tuned one."""
    config = folder.config
    longer = config.model_copy(update={"compare": config.compare.model_copy(update={"num_updates": num_updates})})

    def make(tracker: Tracker) -> Comparison:
        tuning = tuned(longer, "fixed", build_mdp(config), tracker=tracker)
        steps = choose(tuning.table.chosen["stepsize"])
        methods = [metafqi_method(bench.model(folder)), tuning.method(), *map(fixed_method, steps)]
        return on_test_tasks(longer, methods, tuning=[tuning.table], tracker=tracker)

    return bench.kept(folder, "longer", make)


def tuned_step(comparison: Comparison) -> float:
    """The fixed step that was best on the tuning tasks."""
    return comparison.methods[comparison.index("fixed")].values["stepsize"]


def main_line(comparison: Comparison, label: str = "metaFQI") -> Line:
    """The learning curve of metaFQI."""
    return Line(label, comparison.returns[comparison.index("metafqi")], "metafqi", is_main=True)


def fixed_lines(comparison: Comparison, steps: Sequence[float], tuned: float) -> list[Line]:
    """Learning curves of some fixed steps; the tuned one is dashed and alone has a band."""
    lines = []
    for index, step in enumerate(steps):
        label = f"{step_name(step)}, tuned" if step == tuned else step_name(step)
        place = index / max(len(steps) - 1, 1)
        row = comparison.returns[comparison.index(step_name(step))]
        lines.append(Line(label, row, ("warm", place), is_dashed=step == tuned, has_band=step == tuned))
    return lines


def stepsizes(name: str, comparison: Comparison, tuned: float) -> Panel:
    """The step sizes that metaFQI chose, beside the tuned fixed one."""
    chosen = comparison.hyperparameters[comparison.index("metafqi"), :, :, 0]
    constant = np.full((1, chosen.shape[1]), tuned)
    lines = [
        Line("metaFQI", chosen, "metafqi", is_main=True),
        Line("tuned", constant, "fixed", is_dashed=True, has_band=False),
    ]
    return curves(f"{name}: step size", lines, ylabel="step size", first=1)


def _against_fixed_steps(bench: Workbench, folder: RunFolder) -> Comparison:
    """metaFQI and every fixed step; HalfCheetah for as many updates as it was trained on, which the paper compares on fewer."""
    config = folder.config
    num_updates = updates_collected(config) if is_shown_as_gain(folder) else config.compare.num_updates
    if num_updates == config.compare.num_updates:
        return with_fixed_grid(bench, folder)
    return for_longer(bench, folder, num_updates, lambda best: config.compare.grids.fixed)


def fig2(bench: Workbench) -> Product:
    """MetaFQI against fixed steps."""
    outcomes: list[Outcome] = []
    rows: list[dict[str, object]] = []
    above, below, kept = [], [], {}
    for env in bench.environments:
        folder = bench.folder(env)
        comparison = _against_fixed_steps(bench, folder)
        grid, best = folder.config.compare.grids.fixed, tuned_step(comparison)
        outcome, found = beats_every(
            folder,
            comparison,
            "metafqi",
            [step_name(step) for step in grid],
            f"metaFQI, which chooses a step size at every update, learns faster than each of {len(grid)} fixed ones",
        )
        rows += table(folder, found)
        name, iteration = title(folder), bench.model(folder).record.selected_iteration
        hardest = min(found, key=lambda row: row.mean).baseline
        steps = handful(grid, [best, *(step for step in grid if step_name(step) == hardest)])
        drawn, quantity = shown(folder, comparison)
        lines = [main_line(drawn, f"metaFQI, N = {iteration}"), *fixed_lines(drawn, steps, best)]
        if is_shown_as_gain(folder):
            oracle = known_task(bench, folder, comparison, best)
            lines.append(oracle.line(drawn.returns.shape[2]))
            outcome = outcome._replace(detail=f"{outcome.detail}; {oracle.described(folder)}")
        outcomes.append(outcome)
        above.append(curves(name, lines, ylabel=quantity))
        below.append(stepsizes(name, comparison, best))
        kept[env] = comparison
    caption = (
        "metaFQI and fixed steps of the natural gradient on the same test tasks: return (above) and chosen step sizes "
        "(below), means with 95 % intervals over tasks for metaFQI and the tuned step."
    )
    if remark := gain_remark(bench):
        caption += f"{remark} The oracle is what a policy gains that is trained for long on each test task, with the tuned step."
    return Product(outcomes, [picture("fig2", caption, [above, below])], {"differences": rows}, kept)


def _tuned_comparison(
    bench: Workbench, env: str, baselines: Sequence[str], claim: str
) -> tuple[RunFolder, Comparison, Outcome, tuple[Difference, ...]]:
    folder = bench.folder(env)
    comparison = bench.tested(folder, "metafqi", *baselines)
    outcome, found = beats_every(folder, comparison, "metafqi", baselines, claim)
    return folder, comparison, outcome, found


def _tuned_lines(comparison: Comparison, baselines: Sequence[str]) -> list[Line]:
    others = [Line(title_of(name), comparison.returns[comparison.index(name)], name) for name in baselines]
    return [main_line(comparison), *others]


def fig3(bench: Workbench) -> Product:
    """MetaFQI against tuned baselines."""
    claim = "metaFQI learns faster than each tuned baseline: fixed step, RMSprop, Adam, HOOF and metagrad"
    outcomes, rows, kept = [], [], {}
    above, below = [], []
    for env in bench.environments:
        folder, comparison, outcome, found = _tuned_comparison(bench, env, BASELINES, claim)
        outcomes.append(outcome)
        rows += table(folder, found)
        drawn, quantity = shown(folder, comparison)
        above.append(curves(title(folder), _tuned_lines(drawn, BASELINES), ylabel=quantity))
        below.append(whiskers(f"{title(folder)}: difference", found))
        kept[env] = comparison
    caption = (
        "metaFQI and tuned baselines on the same test tasks: return (above) and paired differences in AUC, the mean return over "
        "the updates (below), with 95 % intervals over tasks."
    ) + gain_remark(bench)
    return Product(outcomes, [picture("fig3", caption, [above, below])], {"differences": rows}, kept)


def fig_decay(bench: Workbench) -> Product:
    """MetaFQI against a decaying step size."""
    claim = "metaFQI learns faster than a decaying step size alpha/t with tuned alpha"
    outcomes, rows, kept = [], [], {}
    above, below = [], []
    for env in bench.environments:
        folder, comparison, outcome, found = _tuned_comparison(bench, env, ("decay",), claim)
        outcomes.append(outcome)
        rows += table(folder, found)
        chosen = {name: comparison.hyperparameters[comparison.index(name), :, :, 0] for name in ("metafqi", "decay")}
        steps = [Line(title_of(name), chosen[name], name, is_main=name == "metafqi") for name in chosen]
        above.append(curves(title(folder), _tuned_lines(comparison, ("decay",))))
        below.append(curves(f"{title(folder)}: step size", steps, ylabel="step size", first=1))
        kept[env] = comparison
    caption = (
        "metaFQI and the decaying step size alpha/t: return (above) and step sizes (below), 95 % intervals over tasks."
    )
    return Product(outcomes, [picture("fig-decay", caption, [above, below])], {"differences": rows}, kept)
