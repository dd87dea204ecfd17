"""How the model that chooses direction and step was settled: a search on validation tasks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from metastep._core.errors import InputError
from metastep.experiments.build import build_mdp, build_regressor
from metastep.experiments.config import variant
from metastep.experiments.provenance import copy_data as take_over
from metastep.experiments.provenance import find_data
from metastep.experiments.run import Run as RunFolder
from metastep.experiments.schema import Experiment
from metastep.experiments.stages import learn
from metastep.fqi import Model
from metastep.fqi.regressors import Regressor
from metastep.mdp.collection import recorded_features
from metastep.report.figures import Layout, Panel, picture
from metastep.report.style import MAIN, Ink, plain, tint
from paper.outcome import Product
from paper.workbench import Run, Workbench

MODEL = "metastep"
_TABLE = f"models.{MODEL}"

_NGA = tuple(f"nga damping={damping}" for damping in (0.001, 0.01, 0.1, 0.9))
_FEW = (_NGA[0], _NGA[2], "rmsprop")
_MANY = (*_NGA, "rmsprop", "adam")


def menu_of(directions: Sequence[str]) -> str:
    """The override that sets the directions."""
    names = ", ".join(f'"{name}"' for name in directions)
    return f'{_TABLE}.meta.rule={{name = "menu", directions = [{names}]}}'


def setting(name: str, value: object) -> str:
    """An override of the model's own."""
    return f"{_TABLE}.{name}={value}"


SEARCH: Mapping[str, tuple[str, ...]] = {
    "the preset": (),
    "labels near the model's choice": (setting("collect.near", 0.7),),
    "menu of 6": (menu_of(_MANY),),
    "three rounds": (setting("collect.rounds", 3),),
    "2048 learners": (setting("collect.num_meta_episodes", 2048),),
    "1 label, 4096 learners": (setting("collect.labels", 1), setting("collect.num_meta_episodes", 4096)),
    "discount 1": (setting("meta.meta_discount", 1.0),),
    "discount 0.8": (setting("meta.meta_discount", 0.8),),
    "split 0.001": (setting("fqi.regressor.min_samples_split", 0.001),),
    "split 0.005": (setting("fqi.regressor.min_samples_split", 0.005),),
    "state first": (setting("fqi.regressor.state_first", "true"),),
    "state not first": (setting("fqi.regressor.state_first", "false"),),
    "one round": (setting("collect.rounds", 1),),
    "menu of 3": (menu_of(_FEW),),
    "only full": (setting("meta.observation", '["full"]'),),
    "only unit-free": (setting("meta.observation", '["unit-free"]'),),
}
"""Settings that were tried, around those of the presets."""


def changes_nothing(bench: Workbench, preset: str, changes: Sequence[str]) -> bool:
    """Whether the model of a preset has all these settings anyway: at the quick scale, data is collected in one round."""
    return _settled(bench.config(preset, changes)) == _settled(bench.config(preset))


def _settled(config: Experiment) -> tuple[Experiment, Regressor]:
    """What a model is made with; of the regressor, also what goes without saying."""
    own = variant(config, MODEL)
    return own.model_copy(update={"fqi": own.fqi.model_copy(update={"regressor": None})}), build_regressor(own)


class Tried(NamedTuple):
    """A setting and how it did on validation tasks."""

    environment: str
    setting: str
    score: float  # mean return over the updates of the best iteration, over the validation tasks
    first: float  # that of the first iteration, which does not plan
    iteration: int
    tuples: int


def search(bench: Workbench) -> Product:
    """Score every setting of `SEARCH` on the validation tasks of each environment; no test task is looked at.

    One that repeats what the preset has is left out.
    """
    rows = [row for preset in bench.environments for row in _searched(bench, preset)]
    panels = []
    for preset in bench.environments:
        own = [row for row in rows if row.environment == preset]
        base = own[0].score
        panels.append(_panel(bench.run(preset).title, {row.setting: row.score - base for row in own}))
    caption = (
        "Mean return over the updates on validation tasks, less that of the preset. Every setting is that of the preset but "
        "for what its name says; one that a preset has anyway is left out."
    )
    drawn = picture("search", caption, [panels], Layout((4.2, 4.4), (1.1, 0.5)))
    return Product(outcomes=[], pictures=[drawn], tables={"search": [row._asdict() for row in rows]})


def _panel(title: str, values: Mapping[str, float]) -> Panel:
    """A number for each setting, as a dot; right of zero it is better than the first."""

    def draw(axes: Axes, ink: Ink) -> None:
        heights = range(len(values) - 1, -1, -1)
        axes.plot(list(values.values()), heights, "o", color=tint(MAIN, 0, ink))
        axes.axvline(0.0, color=ink.text, linewidth=0.9)
        axes.set_yticks(heights, [plain(name) for name in values])
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("validation AUC, difference")

    return Panel(title, draw)


def _searched(bench: Workbench, preset: str) -> list[Tried]:
    rows: list[Tried] = []
    done: list[Run] = []
    for number, (setting, changes) in enumerate(SEARCH.items()):
        if changes and changes_nothing(bench, preset, changes):
            continue
        run = bench.run(preset, f"search-{number:02d}", changes)
        model = learned(run, done)
        done.append(run)
        record = model.record
        scores = {curve.iteration: curve.score for curve in record.validation}
        best = scores[record.selected_iteration]
        first = scores.get(1, float("nan"))
        rows.append(Tried(preset, setting, best, first, record.selected_iteration, record.training_data.tuples))
    return rows


def learned(run: Run, others: Sequence[Run] = ()) -> Model:
    """The model of a run; data that another run has collected with the same settings are taken over."""
    own = run.folder.of_model(MODEL)
    folder = RunFolder.create(own.path, own.config, own.tasks)
    for other in others:
        try:
            dataset = find_data(other.folder.of_model(MODEL).path, own.config, own.tasks)
        except InputError:  # of other settings
            continue
        if set(recorded_features(build_mdp(own.config))) <= set(dataset.layout.features):
            take_over(dataset, folder)
            break
    return learn(run.folder, MODEL, tracker=run.tracker)
