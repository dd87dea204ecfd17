"""Figure 1: two hills, where planning one update ahead ends on the low one and planning two on the high one."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from scipy import stats

from metastep.experiments.reproduce.outcome import Outcome, Product, Verdict
from metastep.experiments.reproduce.panels import Line, Panel, curves, ink_of, picture
from metastep.experiments.reproduce.workbench import Workbench
from metastep.fqi import MetaFQI
from metastep.report.style import Ink

_ITERATIONS = 5
_UPDATES = 5
_NEAR = 0.5
"""Distance from a hill's top that counts as having reached it; the tops are 3.5 apart."""


def fig1(bench: Workbench) -> Product:
    """Fit on the two-hill landscape with several seeds and follow every iteration from the start."""
    num_seeds, episodes, trees = (2, 400, 10) if bench.scale == "tiny" else (5, 2000, 25)
    runs = []  # [seed][iteration - 1]
    with bench.tracker.stage("fig1: fit", num_seeds, "seeds") as stage:
        for seed in range(bench.seed, bench.seed + num_seeds):
            runs.append(_followed(seed, episodes, trees))
            stage.advance(1)
    ends = np.array([[rollout.theta[-1] for rollout in run] for run in runs])  # (seeds, iterations, 2)
    heights = np.array([[rollout.returns[-1] for rollout in run] for run in runs])
    low_hill = np.linalg.norm(ends - hills.LOCAL_OPTIMUM, axis=2) < _NEAR
    high_hill = np.linalg.norm(ends - hills.GLOBAL_OPTIMUM, axis=2) < _NEAR
    differences = heights[:, 1:].mean(axis=1) - heights[:, 0]
    half = float(stats.t.ppf(0.975, num_seeds - 1) * differences.std(ddof=1) / np.sqrt(num_seeds))
    mean = float(differences.mean())
    as_claimed = low_hill[:, 0].all() and high_hill[:, 1:].all()
    verdict: Verdict = (
        "holds" if as_claimed else "does not hold" if not high_hill[:, 1:].any() else "not distinguishable"
    )
    outcome = Outcome(
        environment="two hills",
        claim="Planning one update ahead ends on the low hill, planning two or more on the high one",
        quantity="final height, N >= 2 minus N = 1",
        effect=mean,
        low=mean - half,
        high=mean + half,
        num=num_seeds,
        counted="seeds",
        verdict=verdict,
        detail=(
            f"N = 1 ends on the low hill in {low_hill[:, 0].sum()} of {num_seeds} seeds, N = 2 to {_ITERATIONS} on the high "
            f"one in {high_hill[:, 1:].sum()} of {high_hill[:, 1:].size} runs"
        ),
    )
    rows = [
        {
            "seed": bench.seed + seed,
            "iteration": iteration + 1,
            "update": update,
            "theta_0": float(rollout.theta[update, 0]),
            "theta_1": float(rollout.theta[update, 1]),
            "stepsize": float(rollout.stepsize[update - 1]) if update else "",
            "height": float(rollout.returns[update]),
        }
        for seed, run in enumerate(runs)
        for iteration, rollout in enumerate(run)
        for update in range(_UPDATES + 1)
    ]
    by_iteration = np.array([[rollout.returns for rollout in run] for run in runs]).swapaxes(0, 1)
    lines = [
        Line(f"N = {index + 1}", heights_, "hoof" if index == 0 else ("cool", index / (_ITERATIONS - 1)))
        for index, heights_ in enumerate(by_iteration)
    ]
    caption = (
        "Two hills. Left: from the start, the greedy model (N = 1) climbs the low hill; one that plans ahead (N = 2) steps "
        "across it and then up the high one. Right: height by update, 95 % intervals over seeds."
    )
    panels = [_map(runs[0]), curves("Height", lines, ylabel="height")]
    return Product([outcome], [picture("fig1", caption, [panels])], {"paths": rows})


def _followed(seed: int, episodes: int, trees: int) -> list[hills.Rollout]:
    """What every iteration of a model does, from the start."""
    model = MetaFQI(
        iterations=_ITERATIONS,
        trees=trees,
        min_samples_split=0.005,
        meta_discount=hills.META_DISCOUNT,
        stepsize_high=hills.STEPSIZE_HIGH,
        num_stepsizes=hills.NUM_STEPSIZES,
        random_state=seed,
    ).fit(hills.sample_transitions(episodes, 3, seed))
    return [hills.roll_out(partial(model.act, iteration=number), _UPDATES) for number in range(1, _ITERATIONS + 1)]


def _map(run: list[hills.Rollout]) -> Panel:
    def draw(axes: Axes, ink: Ink) -> None:
        x, y = np.meshgrid(np.linspace(-1.8, 4.6, 160), np.linspace(-1.3, 4.2, 160))
        axes.contour(x, y, hills.landscape(np.stack([x, y], axis=-1)), levels=12, cmap="Greys", linewidths=0.7)
        for rollout, name, shade in ((run[1], "N = 2", "metafqi"), (run[0], "N = 1", "hoof")):
            tint = ink_of(shade, 0, ink)
            axes.plot(*rollout.theta.T, "o-", color=tint, markersize=4.0, label=name)
        axes.annotate("start", hills.START, xytext=(0, -14), textcoords="offset points", fontsize=9.0, ha="center")
        axes.set(xlabel="first parameter", ylabel="second parameter", aspect="equal")
        axes.grid(visible=False)
        axes.legend(frameon=False, fontsize=9.0, loc="upper left")

    return Panel("Two hills", draw)
