"""Direction and step against the strongest baselines: tuned dampings, annealed divergences, equal data; and without context."""

from collections.abc import Mapping
from dataclasses import replace

from metastep import Comparison, MethodSpec
from metastep.evaluation import join
from metastep.experiments.config import learners_collected, updates_collected
from metastep.report.figures import whiskers
from metastep.rules.spaces import Range
from paper.ablations import without_context
from paper.claims import beats_every, paired, small
from paper.columns import Column, Figure, handful
from paper.direction import BASELINES, MODEL
from paper.outcome import at_most
from paper.workbench import PresetRun

DAMPINGS = {"rule.damping": (0.001, 0.01, 0.1, 0.9)}
_TUNED = ("fixed", "kl-adaptive", "metagrad")  # the best baselines of HalfCheetah
_DAMPED = ("fixed", "decay", "hoof", "kl-adaptive", "metagrad")


def specs(run: PresetRun) -> list[MethodSpec]:
    """Return the further baselines: fixed and annealed KL along every direction, tuned dampings, a wider range of HOOF."""
    fixed, found = run.methods["fixed-kl"], []
    annealing = {"num_updates": run.config.compare.num_updates}
    annealed = replace(fixed, controller="linear-annealing", controller_options=annealing)
    for word, spec in (("fixed", fixed), ("annealed", annealed)):
        for rule in ("nga", "rmsprop", "adam"):
            grid = {**spec.grid, **(DAMPINGS if rule == "nga" else {})}
            name, label = f"{word}-kl-{rule}", f"{word} KL, {'damping tuned' if rule == 'nga' else rule}"
            found.append(replace(spec, name=name, label=label, rule=rule, grid=grid, colour=""))
    for name in _DAMPED:
        spec, tuned = run.methods[name], run.tested(name).methods[0].values
        grid = {option: tuple(handful(values, [tuned[option]], num=6)) for option, values in spec.grid.items()}
        own = replace(spec, rule="nga", rule_options={}, grid={**grid, **DAMPINGS}, colour="")
        found.append(replace(own, name=f"{name}-damped", label=f"{spec.label}, damping tuned"))
    if widest := run.environment.widest:
        steps = Range(run.config.meta.stepsize_low, widest, run.config.meta.stepsize_scale)
        label = f"HOOF, steps to {widest:g}"
        found.append(replace(run.methods["hoof"], name="hoof-wide", label=label, steps=steps, colour=""))
    return found


def refitted_models(run: PresetRun) -> dict[str, tuple[str, Mapping[str, object]]]:
    """Return labels and settings of further metaFQI models: with as many tuples as metastep has, and with a wider range."""
    own = run.of_model(MODEL).config
    tuples = learners_collected(own) * updates_collected(own) * own.collect.labels
    learners = {"collect.num_meta_episodes": -(-tuples // updates_collected(run.config))}
    found: dict[str, tuple[str, Mapping[str, object]]] = {"equal": ("metaFQI, as many tuples", learners)}
    if widest := run.environment.widest:
        found["wide"] = (f"metaFQI, steps to {widest:g}", learners | {"meta.stepsize_high": widest})
    return found


def _metafqi_as(run: PresetRun, name: str, label: str, settings: Mapping[str, object]) -> Comparison:
    """Test metaFQI with other settings; it lies in a run of its own."""
    method = f"compare.methods.metafqi-{name}"
    changes = [f"{method}.controller=metafqi", f"{method}.model={name}", f"{method}.label={label}"]
    changes += [f"models.{name}.{key}={value}" for key, value in settings.items()]
    return replace(run.bench.run(run.preset, name, changes).tested(f"metafqi-{name}"), made_from={})


def _against_strong_baselines(run: PresetRun) -> Column:
    blind = without_context(run, MODEL)
    parts = [run.tested(MODEL, *BASELINES), *(run.tuned(spec) for spec in specs(run))]
    parts += [_metafqi_as(run, name, *facts) for name, facts in refitted_models(run).items()]
    comparison = join([*parts, blind])
    claim = "Choosing direction and step learns faster than the strongest tuned baselines, metaFQI with as many tuples included"
    unseen = "Little is lost when direction and step are chosen without the task's context, which no tuned one sees"
    lost = small(run, comparison, paired(run, comparison, MODEL, blind.names), unseen, at_most)
    judged = [beats_every(run, comparison, MODEL, comparison.names[1:-1], claim), lost]
    rows = [row for one in judged for row in one.rows]
    return Column(judged, [whiskers(run.title, comparison, rows)], comparison)


strong = Figure(
    "strong",
    "The model that chooses direction and step minus every baseline, in AUC, with 95 % intervals over test tasks. Last the same "
    "model refitted without the context.",
    _against_strong_baselines,
)


def _over_more_updates(run: PresetRun) -> Column:
    def make() -> Comparison:
        tested = run.tested(MODEL, "metafqi", *_TUNED)  # which learns the models
        known = zip((run.methods[name] for name in tested.names), tested.methods, strict=True)
        methods = [spec.method(run.mdp, one.values) if spec.grid else run.prepared(spec) for spec, one in known]
        return run.test(methods, num_updates=updates_collected(run.config))

    comparison = run.kept("more-updates", make, ["model", f"models/{MODEL}/model"])
    claim = f"Choosing direction and step learns faster than metaFQI, {', '.join(_TUNED)} over the updates of metaFQI's data"
    judged = beats_every(run, comparison, MODEL, comparison.names[1:], claim)
    return Column([judged], [whiskers(run.title, comparison, judged.rows)], comparison)


longer = Figure(
    "longer",
    "As `strong`, over the updates that metaFQI was trained on; baselines are tuned for the fewer updates of the comparison.",
    _over_more_updates,
)
