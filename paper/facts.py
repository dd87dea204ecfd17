"""The statements of the paper that can be checked, as data: one row for each figure, environment and statement."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from paper import judging as by
from paper import learning_facts as learning
from paper.environments import CHOICE, ENVIRONMENTS, USUAL
from paper.judging import Judge, Measured, NotMeasured
from paper.outcome import Outcome, at_most, no_better, within


class Fact(NamedTuple):
    """A statement of the paper about an environment."""

    id: str  # FIGURE.ENVIRONMENT.NAME
    statement: str
    judge: Judge
    arguments: tuple[Any, ...]  # of the judge, after what was measured

    @property
    def environment(self) -> str:
        """The name of the preset."""
        return self.id.split(".")[1]

    @property
    def claim(self) -> str:
        """The statement as it stands in the results table, with the id of the figure or table that shows it."""
        return f"{self.id.split('.')[0]}: {self.statement}"

    def judged(self, measured: Measured, title: str = "") -> Outcome | None:
        """Judge the fact, for an environment of this title; None where something it needs was not measured."""
        try:
            return self.judge(measured, *self.arguments)._replace(environment=title, claim=self.claim)
        except NotMeasured:
            return None


_WORDS = {"rmsprop": "RMSprop", "adam": "Adam", "hoof": "HOOF", "metagrad": "metagrad"}
_SETTINGS = {"trees": "number of trees", "split": "minimum split", "lambda": "lambda of the clipped double Q"}


def _rows() -> Iterator[tuple[Any, ...]]:
    """Yield id, statement, judge and the judge's arguments."""
    for env in CHOICE:
        # Figure 3 has the tuned fixed step, too, which is one of these.
        yield f"fig2.{env}.fixed", "metaFQI learns faster than every fixed step size", by.beats_fixed
        for name, word in _WORDS.items():
            yield f"fig3.{env}.{name}", f"metaFQI learns faster than {word}", by.beats, "metafqi", name
        says = "planning several updates ahead beats planning one"
        yield f"fig-iterations.{env}.planning", says, learning.planning_pays
        yield f"fig-iterations.{env}.degrade", "from some iteration on results get worse", learning.last_degrades
        for method, values in ENVIRONMENTS[env].tuned.items():
            for name, value in values.items():
                says = f"the tuned {name} of {method} is {value:g}, up to a grid step"
                yield f"table1.{env}.{method}-{name}", says, by.tuned_near, method, name, value
        says = "metagrad depends more on its first step size than on beta"
        yield f"table1.{env}.metagrad", says, by.depends_on_first, "metagrad", "stepsize", "beta"
        for rule in ("rmsprop", "adam"):
            says = f"{_WORDS[rule]} does worse on the natural gradient than on the plain one"
            yield f"table1.{env}.{rule}-natural", says, by.beats, rule, f"{rule}-natural"
    # No schedule is shown for HalfCheetah, and which environments the others cover is not said.
    for env in USUAL:
        yield f"fig-decay.{env}.beats", "metaFQI learns faster than a decaying step size", by.beats, "metafqi", "decay"
        says = "in one task, too, metaFQI learns faster than the tuned fixed step"
        yield f"fig-fixed-context.{env}.beats", says, by.beats, "metafqi", "fixed", "one_task"
        says = "one learned step size for each task is no improvement on a tuned one"
        yield f"fig-single-action.{env}.no-better", says, by.differ, no_better, "single", "fixed", "fixed"
        for what, word in _SETTINGS.items():
            says = f"another {word} changes little"
            yield f"facts.{env}.{what}", says, by.differ, within, f"other {what}", "metafqi", "metafqi"
    for env in ("nav2d", "minigolf"):
        says = "little is lost without the context"
        yield f"fig-context.{env}.lost", says, by.differ, at_most, "metafqi", "without context", "metafqi"
    says = "metaFQI starts with large steps and slows down"
    yield "fig2.nav2d.slowing", says, learning.first_steps_larger, 3
    yield "fig2.minigolf.converged", "metaFQI has converged after about 10 updates", learning.converged_after, 10
    yield (
        "fig2.minigolf.short",
        "fixed steps end short of what metaFQI reaches",
        by.beats_fixed,
        0.0,
        float("inf"),
        True,
    )
    says = "high fixed steps are ahead of metaFQI in the first updates"
    yield "fig2.cartpole.early", says, learning.high_rates_ahead_at_first, 2
    says = "metaFQI's steps are small: below a half of the largest on average"
    yield "fig2.cartpole.small", says, learning.steps_within, 0.0, 5.0
    says = "N = 1 is ahead of planning in the first updates and behind it overall"
    yield "fig2.cartpole.greedy", says, learning.greedy_only_at_first, 2
    says = "the more updates are planned, the smaller the steps"
    yield "fig2.cartpole.cautious", says, learning.more_cautious_with_n
    says = "learning is far from convergence after 15 updates"
    yield "fig2.cartpole.unfinished", says, learning.still_learning_after, 15
    says = "over 60 updates the best fixed step is 1.8, up to a grid step"
    yield "fig-cartpole60.cartpole.tuned", says, by.tuned_near, "fixed", "stepsize", 1.8, "longer"
    for env, number in (("cartpole", 5), ("swingup", 1)):
        says = f"N = {number} is the best number of iterations"
        yield f"fig-iterations.{env}.selected", says, learning.selected_is, number
    says = "metaFQI learns faster than HOOF tuned on the paper's own grid"
    yield "fig3.nav2d.hoof-paper", says, by.beats, "metafqi", "hoof-paper"
    yield "fig-context.cartpole.helps", "seeing the context helps", by.beats, "metafqi", "without context"
    says = "metaFQI learns slightly better than with a fixed step of 0.1"
    yield "fig-swingup.swingup.like", says, by.beats, "metafqi", "h = 0.1"
    says = "the best fixed step is 0.1, up to a grid step"
    yield "fig-swingup.swingup.tuned", says, by.tuned_near, "fixed", "stepsize", 0.1
    yield "fig-swingup.swingup.iterations", "all iterations do about equally well", learning.iterations_alike
    says = "after two updates metaFQI's steps are about 0.1"
    yield "fig-swingup.swingup.steps", says, learning.steps_within, 0.05, 0.15, 2
    says = "metaFQI's first two steps are larger than the later ones"
    yield "fig-swingup.swingup.first", says, learning.first_steps_larger, 2
    yield (
        "fig2.halfcheetah.steps",
        "metaFQI's steps lie between 0.2 and 0.4",
        learning.steps_within,
        0.2,
        0.4,
        0,
        "longer",
    )
    yield "fig2.halfcheetah.same", "fixed steps in that range do not gain as much", by.beats_fixed, 0.2, 0.4
    says = "the random state of the forest matters little"
    yield "fig-robust.halfcheetah.states", says, learning.states_matter_little
    yield "fig-robust.halfcheetah.double", "double Q learns faster than single Q", learning.double_beats_single


FACTS = tuple(Fact(id, statement, judge, tuple(rest)) for id, statement, judge, *rest in _rows())


def facts_of(environment: str) -> tuple[Fact, ...]:
    """Return the facts about an environment."""
    return tuple(fact for fact in FACTS if fact.environment == environment)
