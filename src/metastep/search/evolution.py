"""Evolution strategies over controllers, on the learning curves themselves.

Every generation draws controllers around a mean and moves the mean towards those whose learners do better. Two controllers share
a task, a first policy and all noise of the simulation, so that their difference is that of the controllers. The mean is judged on
the validation tasks now and then, and the best one is kept. A level begins where the simpler one was after its share of the
generations, so that every level has cost the same number of them. All of it is a plan of blocks (`metastep.mdp.runs`): blocks run
on cores, workers or a GPU, and the result does not depend on where.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep import features
from metastep._core.errors import InputError
from metastep._core.parallel import map_threads
from metastep._core.settings import Count, Positive, Several, check_fields
from metastep.features.diagnostics import OF_LOOP, Memory, Seen
from metastep.mdp import ActorCriticMDP, MetaMDP, Tasks
from metastep.mdp.blocks import Blocks, Stream
from metastep.mdp.loop import run_updates
from metastep.mdp.runs import BlockRun, Plan, run_plans
from metastep.rules.spaces import HyperparameterSpace, usual_values
from metastep.search.controller import Searched
from metastep.search.course import Course, Files
from metastep.search.network import BUDGET, LEVELS, Level, Network

Objective = Literal["auc", "final"]
Strategy = Literal["open-es", "cma-es", "snes", "pgpe"]
HeldOut = tuple[ActorCriticMDP, Callable[[NDArray[np.float64]], float]]  # to judge on, and what scores are worth
Families = Sequence[ActorCriticMDP]
# What counts as 1 in the returns of every task (tasks, coordinates) of a family: (tasks,).
Units = Callable[[ActorCriticMDP, NDArray[np.float32]], NDArray[np.float64]]
_PAIRED: tuple[Strategy, ...] = ("open-es", "pgpe")  # draw -z beside every z, in the second half of the population
_SEARCH, _HIDDEN, _SPREAD = 101, 102, 103  # purposes of random numbers
_LENIENT = partial(jax.numpy_dtype_promotion, "standard")  # evosax and optax mix types
_OBSERVED = 8  # families at most whose learners say what features are like, for feedback
_INSIDE = 0.15  # distance of the first controller from the faces of the unit cube, where a logit has little slope


@dataclass(frozen=True)
class Search:
    """How controllers are searched.

    Args:
        strategy: the evolution strategy, as evosax implements it.
        objective: what is maximised: the mean return over all updates, or over the last tenth of them.
        levels: what controllers may react to; the simplest that is as good as any is selected.
        start: values of hyperparameters to begin with, by name; by default the rule's, and the middle of the rate's range. They
            are moved into the inner 70 % of each range, along its scale.
        generations: how often the mean moves, for every level; those of the simpler levels that it begins from count.
        pairs: controllers of a generation, in pairs that share a task and all noise.
        deviation: standard deviation of the weights that are drawn; they are added to logits.
        rate: of Adam, which moves the mean with `open-es` and `pgpe`; it falls linearly to a tenth.
        knots: points of the curves over the budget.
        units: of the layer that feedback adds.
        observation: features, or sets of them, that feedback observes.
        validate_every: generations after which the mean is judged on the validation tasks.
        block_size: pairs simulated together; by default those of the meta-MDP.
        families_at_once: families of one generation, which take turns; by default all of them.
        model: a searched model to begin from: the name of one of the library's, a file or a run.
    """

    strategy: Strategy = "open-es"
    objective: Objective = "auc"
    levels: tuple[Level, ...] = LEVELS
    start: Mapping[str, float] = field(default_factory=dict)
    generations: Count = 40
    pairs: Several = 256
    deviation: Positive = 0.3
    rate: Positive = 0.15
    knots: Several = 5
    units: Count = 8
    observation: tuple[str, ...] = features.expanded(("training", "progress"))
    validate_every: Count = 5
    block_size: Count | None = None
    families_at_once: Count | None = None
    model: str = ""

    def __post_init__(self) -> None:
        check_fields(self, "search")
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise InputError(f"search.levels: {list(self.levels)} must name one level or more, each once.")

    def of_level(self, level: Level) -> tuple["Search", int, int]:
        """Return the search of one level by itself, and after how many of its, and of all, generations the next and it begin."""
        order = sorted(self.levels, key=LEVELS.index)
        begins = [self.generations * index // len(order) for index in range(len(order) + 1)]
        start = begins[order.index(level)]
        end = next(other for other in begins if other > start)
        return replace(self, generations=self.generations - start), end - start, start

    def in_turn(self, families: Sequence[Any], generation: int) -> list[Any]:
        """Return the families of a generation."""
        num = min(self.families_at_once or len(families), len(families))
        return [families[(generation * num + index) % len(families)] for index in range(num)]

    def with_twins(self, mdp: ActorCriticMDP, twins: int) -> ActorCriticMDP:
        """Return a meta-MDP for blocks in which so many controllers share each task, first policy and noise."""
        size = self.block_size or mdp.block_size
        return replace(mdp, sampler=replace(mdp.sampler, twins=twins), block_size=twins * size)

    @property
    def runs_of_pair(self) -> int:
        """Learners of a pair: without antithetic pairs, the mean controller takes part to compare both with."""
        return 2 if self.strategy in _PAIRED else 3


def base_point(mdp: ActorCriticMDP, start: Mapping[str, float] | None = None) -> tuple[float, ...]:
    """Return where a search begins on the unit cube: what the rule's fields are, or the middle where they say nothing."""
    space, given = mdp.space, dict(start or {})
    assert isinstance(space, HyperparameterSpace)
    if unknown := [name for name in given if name not in space.names]:
        raise InputError(f"search.start: {unknown[0]!r} is not chosen here, allowed are {', '.join(space.names)}.")
    known, found = usual_values(mdp.rule, space) | given, []
    for name, bounds in zip(space.names, space.ranges, strict=True):
        if name in given and not bounds.low <= given[name] <= bounds.high:
            raise InputError(f"search.start.{name}: {given[name]:g} must be from {bounds.low:g} to {bounds.high:g}.")
        unit = bounds.to_unit(known[name]) if name in known else 0.5
        found.append(float(np.clip(unit, _INSIDE, 1.0 - _INSIDE)))
    return tuple(found)


def feedback_features(search: Search, mdp: MetaMDP) -> tuple[str, ...]:
    """Return the features that feedback observes, or refuse those that the meta-MDP does not have."""
    wanted = tuple(dict.fromkeys((*features.expanded(search.observation), BUDGET)))
    features.require_known(replace(mdp, observation=wanted), "search.observation")
    return wanted


class Start(NamedTuple):
    """A controller that a search begins from."""

    network: Network
    weights: NDArray[np.float32]
    steps: float = 0.0  # environment steps that it cost


def network_of(level: Level, search: Search, families: Families, seed: int, simpler: Start | None = None) -> Network:
    """Return the form of a level's controller; feedback standardises by what learners under random simpler ones observe.

    All levels observe what differs between the loops of families, and nothing else of a loop: what never differs says nothing.
    """
    first = families[0]
    base = base_point(first, search.start)
    if simpler:
        form = simpler.network
        known = {form.features[index]: (form.mean[index], form.spread[index]) for index in form.of_loop}
    else:
        loops = {name: own for name, own in features_of_loops(families).items() if np.ptp(own) > 0.0}
        known = {name: (float(np.mean(own)), float(np.std(own))) for name, own in loops.items()}
    if level != "feedback":
        known |= {BUDGET: (0.5, 0.3)} if level == "schedule" else {}
        return _form(known, base, search.knots if level == "schedule" else 1)
    wanted = (*(name for name in feedback_features(search, first) if name not in OF_LOOP), *known)
    network, center, _ = simpler or Start(Network((), (), (), base), np.zeros(len(base), np.float32))
    rows = []
    for index, mdp in enumerate(families[:: -(-len(families) // _OBSERVED)]):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _SPREAD), index)
        draws = np.asarray(jax.random.normal(key, (mdp.block_size, network.num_weights), jnp.float32))
        rows.append(observed(mdp, Searched(network, center + draws), wanted, seed, Stream.TRAIN))
    columns = zip(features.columns(first, wanted), np.concatenate(rows).T, strict=True)
    usual = {name: (float(own.mean()), float(own.std())) for name, own in columns}
    return _form(usual | known, base, search.knots, search.units)


def _form(known: Mapping[str, tuple[float, float]], *others: Any) -> Network:
    """Return a network of features with these means and spreads."""
    mean, spread = zip(*known.values(), strict=True) if known else ((), ())
    return Network((*known,), mean, spread, *others)


def features_of_loops(families: Families) -> dict[str, list[float]]:
    """Return the features of the loops of some families, by name, which never change."""
    seen = [Seen({name: np.float64(own) for name, own in mdp.of_loop.items()}, Memory(), np) for mdp in families]
    return {name: [float(features.make(name)(each)) for each in seen] for name in OF_LOOP}


def observed(
    mdp: ActorCriticMDP, controller: Searched, names: Sequence[str], seed: int, stream: Stream
) -> NDArray[np.float32]:
    """Return the features of one block of learners at all updates where all are finite: (rows, columns)."""
    learners = mdp.begin(mdp.tasks(seed, stream, 0))
    state = controller.init(mdp, learners)
    history = run_updates(mdp, controller, learners, state, mdp.budget, from_start=True, record=names).history
    found = history.observe(names)[:-1]
    found = found[np.isfinite(found).all(axis=-1)]
    if not len(found):
        raise InputError(f"search: no learner on {mdp.env.name} has finite features; look at the ranges of choices.")
    return found


def first_weights(network: Network, seed: int, simpler: Start | None = None) -> NDArray[np.float32]:
    """Return the weights that a search begins with: they propose what the simpler controller does, or the base point."""
    parts = network.split(np.zeros(network.num_weights, np.float32))
    draws = jax.random.normal(jax.random.fold_in(jax.random.key(seed), _HIDDEN), parts.hidden.shape, jnp.float32)
    known = simpler.network.split(simpler.weights) if simpler else parts
    curves = np.broadcast_to(known.curves, parts.curves.shape)
    parts = parts._replace(curves=curves, hidden=np.asarray(draws), loop=known.loop)
    return np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)


@_LENIENT()
def make_strategy(search: Search, num_weights: int) -> tuple[Any, Any]:
    """Return a strategy of evosax for two controllers of every pair, and its parameters."""
    try:
        import evosax.algorithms as algorithms
        import optax
    except ModuleNotFoundError as error:
        raise InputError(f"search: needs {error.name}, install it with `pip install 'metastep[search]'`.") from None
    size, like = 2 * search.pairs, jnp.zeros(num_weights, jnp.float32)
    falling = optax.linear_schedule(search.rate, 0.1 * search.rate, search.generations)
    if search.strategy == "open-es":
        spread = optax.constant_schedule(search.deviation)
        made = algorithms.Open_ES(size, like, optimizer=optax.adam(falling), std_schedule=spread)
        return made, made.default_params
    if search.strategy == "pgpe":
        made = algorithms.PGPE(size, like, optimizer=optax.adam(falling))
    else:
        made = (algorithms.CMA_ES if search.strategy == "cma-es" else algorithms.SNES)(size, like)
    kind = type(made.default_params.std_init)
    deviation = search.deviation if kind is float else jnp.float32(search.deviation)
    return made, made.default_params.replace(std_init=deviation)


def score(mean_return: NDArray[np.floating[Any]], objective: Objective) -> NDArray[np.float64]:
    """Return what is maximised of returns (T+1, ...), time first; minus infinity where one is not finite."""
    returns = mean_return[1:].astype(np.float64)
    returns = returns if objective == "auc" else returns[-max(1, len(returns) // 10) :]
    with np.errstate(invalid="ignore", over="ignore"):
        found = returns.mean(axis=0)
    return np.where(np.isfinite(found), found, -np.inf)


def advantage(scores: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much better scores of a family are than others on the same tasks, in units of a usual difference."""
    differences = np.subtract(*finite(np.stack([scores, other])))
    usual = np.abs(differences).mean()
    return differences / usual if usual > 0.0 else differences


def finite(scores: NDArray[np.float64], nothing: float = 0.0) -> NDArray[np.float64]:
    """Return scores in which learners that diverged count as the worst that did not, or as `nothing` where all did."""
    sound = np.isfinite(scores)
    return np.where(sound, scores, scores[sound].min() if sound.any() else nothing)


def search_levels(
    families: Families,
    search: Search,
    *,
    seed: int,
    advance: Callable[[float], object] = lambda _: None,
    begin: Start | None = None,
    **how: Any,
) -> dict[Level, tuple[Network, Course]]:
    """Search every level, from the simplest on; return the form of each and its course.

    The level of `begin` starts from that controller. The rest goes to `searching`, such as `num_validation` and `files`.
    """
    found: dict[Level, tuple[Network, Course]] = {}
    simpler = None
    for level in sorted(search.levels, key=LEVELS.index):
        if begin is not None and begin.network.level == level:
            start = begin
        else:
            network = network_of(level, search, families, seed, simpler)
            start = Start(network, first_weights(network, seed, simpler), simpler.steps if simpler else 0.0)
        course = run_plans([searching(families, search, start, seed=seed, **how)], advance)[0]
        found[level], simpler = (start.network, course), Start(start.network, course.branch, course.branch_steps)
    return found


def searching(
    families: Families,
    search: Search,
    start: Start,
    *,
    seed: int,
    num_validation: int,
    files: Files = Files(),
    held_out: Sequence[HeldOut] = (),
    units: Units | None = None,
) -> Plan[Course]:
    """Plan the search of one level, of controllers of the form of `start`; families share the pairs evenly.

    Each family's `budget` is that of its learners; `num_validation` tasks of each, or of those held out, judge the mean. Where
    returns of some tasks are larger than those of others, `units` says by how much.
    """
    judges, worth = zip(*held_out or [(mdp, lambda own: finite(own, -np.inf).mean()) for mdp in families], strict=True)
    network, mean, spent = start
    search, branch, skipped = search.of_level(network.level)
    strategy, params = make_strategy(search, network.num_weights)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _SEARCH), LEVELS.index(network.level))
    with _LENIENT():
        state = strategy.init(jax.random.fold_in(key, 2**32 - 1), jnp.asarray(mean), params)
    course = files.begun(network.level, state) or Course(0, state, mean, mean, 0, (), spent, spent)
    num = len(search.in_turn(families, 0))
    if (share := search.pairs // num) < 1:
        raise InputError(f"search.pairs: {search.pairs} must be at least {num}, one for each family.")
    is_paired = search.runs_of_pair == 2
    while True:
        generation = course.generation
        is_last = generation == search.generations
        if (is_last or generation % search.validate_every == 0) and generation not in dict(course.scores):
            mean = np.asarray(course.state.mean, np.float32)
            every = [np.broadcast_to(mean, (1, num_validation, len(mean)))] * len(judges)
            judged = yield from _scores(network, every, judges, search, seed, Stream.VALIDATION, units=units)
            found = float(np.mean([value(scores) for value, (scores, _) in zip(worth, judged, strict=True)]))
            steps = sum(made for _, made in judged)
            best = max((known for _, known in course.scores), default=-np.inf)
            course = course._replace(scores=(*course.scores, (generation, found)), steps=course.steps + steps)
            if found > best or not np.isfinite(best):
                course = course._replace(best=mean, best_generation=generation)
            files.keep(network.level, course)
        if is_last:
            return course
        with _LENIENT():
            drawn, state = strategy.ask(jax.random.fold_in(key, 2 * generation), course.state, params)
        halves = np.asarray(drawn, np.float32).reshape(2, search.pairs, -1)
        center = np.broadcast_to(np.asarray(state.mean, np.float32), halves[:1].shape)
        groups = halves if is_paired else np.concatenate([halves, center])
        shared = [groups[:, index * share : (index + 1) * share] for index in range(num)]
        taken = search.in_turn(families, skipped + generation)  # goes on from the simpler level
        ran = yield from _scores(network, shared, taken, search, seed, Stream.TRAIN, generation, units)
        gains, steps = [], course.steps + sum(made for _, made in ran)
        for scores, _ in ran:
            others = scores[1::-1] if is_paired else scores[[2, 2]]
            gains.append([advantage(one, other) for one, other in zip(scores[:2], others, strict=True)])
        fitness = -np.concatenate(gains, axis=1)  # strategies minimise
        missing = search.pairs - fitness.shape[1]  # pairs that could not be shared out evenly say nothing
        fitness = np.pad(fitness, ((0, 0), (0, missing))).reshape(-1).astype(np.float32)
        learning = jax.random.fold_in(key, 2 * generation + 1)
        with _LENIENT():
            state, _ = strategy.tell(learning, drawn, jnp.asarray(fitness), state, params)
        course = course._replace(generation=generation + 1, state=state, steps=steps)
        if course.generation == branch:
            course = course._replace(branch=np.asarray(state.mean, np.float32), branch_steps=steps)
        files.keep(network.level, course)


def num_blocks(
    search: Search,
    families: Families,
    num_validation: int,
    level: Level,
    generation: int = 0,
    held_out: Sequence[HeldOut] = (),
) -> int:
    """Return how many blocks the search of a level has from a generation on, for progress."""
    (search, _, skipped), sizes = search.of_level(level), [search.block_size or mdp.block_size for mdp in families]
    judges = [search.block_size or mdp.block_size for mdp, *_ in held_out] or sizes
    left = range(generation, search.generations + 1)
    judged = sum(index % search.validate_every == 0 or index == search.generations for index in left)
    found = judged * sum(len(Blocks(num_validation, size)) for size in judges)
    for taken in (search.in_turn(sizes, skipped + index) for index in left[:-1]):
        found += sum(len(Blocks(max(1, search.pairs // len(taken)), size)) for size in taken)
    return found


def draw_tasks(mdp: ActorCriticMDP, seed: int, stream: Stream, block: int) -> Tasks:
    """Draw the tasks and first policies of one twin for all twins of a block."""
    twins = mdp.sampler.twins
    one = replace(mdp, block_size=mdp.block_size // twins).tasks(seed, stream, block)
    return one._replace(context=jnp.tile(one.context, (twins, 1)), theta=jnp.tile(one.theta, (twins, 1)))


def compile_programs(search: Search, mdp: ActorCriticMDP) -> None:
    """Compile what blocks of validation and of pairs run, all programs side by side; a search finds them compiled."""
    blocks = [search.with_twins(mdp, twins) for twins in (1, search.runs_of_pair)]
    programs = [program for each in blocks for program in each.lowered(draw_tasks(each, 0, Stream.TRAIN, 0))]
    map_threads(lambda program: program.compile(), programs, len(programs))


def _scores(
    network: Network,
    controllers: Sequence[NDArray[np.float32]],
    families: Families,
    search: Search,
    seed: int,
    stream: Stream,
    generation: int = -1,
    units: Units | None = None,
) -> Plan[list[tuple[NDArray[np.float64], float]]]:
    """Run the controllers (twins, num, weights) of each family; return their scores (twins, num) and environment steps.

    Twins share tasks, first policies and noise. The blocks before those of generation 0 are for other purposes.
    """
    asked: list[list[BlockRun]] = []
    for mdp, weights in zip(families, controllers, strict=True):
        twins, num, size = weights.shape
        twice = search.with_twins(mdp, twins)
        blocks = Blocks(num, twice.block_size // twins)
        asked.append([])
        for block in blocks:
            own = weights[:, block * blocks.size : (block + 1) * blocks.size]
            padded = np.pad(own, ((0, 0), (0, blocks.size - own.shape[1]), (0, 0)), mode="edge")
            start = draw_tasks(twice, seed, stream, max(0, 1 + generation * len(blocks)) + block)
            asked[-1].append(BlockRun(twice, Searched(network, padded.reshape(-1, size)), start, mdp.budget))
    ran, found = iter((yield [block for own in asked for block in own])), []
    for mdp, group, weights in zip(families, asked, controllers, strict=True):
        (twins, num, _), rows = weights.shape, []
        for history in (next(ran).history for _ in group):
            unit = 1.0 if units is None else units(mdp, history.context)
            rows.append((history.mean_return / unit, history.num_steps))
        curves, steps = (
            np.concatenate([part.reshape(len(part), twins, -1) for part in parts], axis=2)[:, :, :num]
            for parts in zip(*rows, strict=True)
        )
        found.append((score(curves, search.objective), float(steps.sum(dtype=np.float64))))
    return found
