"""What the paper says that can be checked, as data: one entry for each figure, environment and statement.

A fact is judged by what was measured, on whichever tasks that was: tuning tasks where readings of the paper are screened, test
tasks where results are made.
"""

from collections.abc import Iterator
from typing import NamedTuple

from paper import judging as by
from paper import learning_facts as course
from paper.environments import ENVIRONMENTS
from paper.judging import Found, Judge, Measured, NotMeasured


class Fact(NamedTuple):
    """A statement of the paper about an environment."""

    id: str
    figure: str  # the id of the figure or table that shows it
    environment: str  # name of a preset
    statement: str
    judge: Judge
    is_win: bool = False  # it says that metaFQI, or planning with it, is better than something else

    @property
    def claim(self) -> str:
        """The statement as a row of the results table has it."""
        return f"{self.figure}: {self.statement}"

    def judged(self, measured: Measured) -> Found | None:
        """The verdict; None where what it takes was not measured."""
        try:
            return self.judge(measured)
        except NotMeasured:
            return None


_WORDS = {"rmsprop": "RMSprop", "adam": "Adam", "hoof": "HOOF", "metagrad": "metagrad"}
_SETTINGS = {"trees": "number of trees", "split": "minimum split", "lambda": "lambda of the clipped double Q"}
_FIGURES = ("nav2d", "minigolf", "cartpole", "halfcheetah")


def _everywhere() -> Iterator[Fact]:
    """What the paper says of each environment of its main figures."""
    for env in _FIGURES:
        # Figure 3 has the tuned fixed step, too, which is one of these.
        every_step = "metaFQI learns faster than every fixed step size"
        yield Fact(f"fig2.{env}.fixed", "fig2", env, every_step, by.beats_fixed(), is_win=True)
        for name, word in _WORDS.items():
            statement = f"metaFQI learns faster than {word}"
            yield Fact(f"fig3.{env}.{name}", "fig3", env, statement, by.beats("metafqi", name), is_win=True)
        yield Fact(
            f"iterations.{env}.planning",
            "fig-iterations",
            env,
            "planning several updates ahead beats planning one",
            course.planning_pays,
            is_win=True,
        )
        yield Fact(
            f"iterations.{env}.degrade",
            "fig-iterations",
            env,
            "from some iteration on results get worse",
            course.last_degrades,
        )
        for method, values in ENVIRONMENTS[env].tuned.items():
            for parameter, value in values.items():
                statement = f"the tuned {parameter} of {method} is {value:g}, up to a grid step"
                judge = by.tuned_near(method, parameter, value)
                yield Fact(f"table1.{env}.{method}.{parameter}", "table1", env, statement, judge)
        yield Fact(
            f"table1.{env}.metagrad",
            "table1",
            env,
            "metagrad depends more on its first step size than on beta",
            by.depends_on_first("metagrad", "stepsize", "beta"),
        )
        for rule in ("rmsprop", "adam"):
            statement = f"{_WORDS[rule]} does worse on the natural gradient than on the plain one"
            yield Fact(f"natural.{env}.{rule}", "table1", env, statement, by.beats(rule, f"{rule}-natural"))
    # No schedule is shown for HalfCheetah, and which environments the others cover is not said.
    for env in _FIGURES[:3]:
        yield Fact(
            f"decay.{env}",
            "fig-decay",
            env,
            "metaFQI learns faster than a decaying step size",
            by.beats("metafqi", "decay"),
            is_win=True,
        )
        yield Fact(
            f"fixed-context.{env}",
            "fig-fixed-context",
            env,
            "in one task, too, metaFQI learns faster than the tuned fixed step",
            by.beats("metafqi", "fixed", "one_task"),
            is_win=True,
        )
        yield Fact(
            f"single-action.{env}",
            "fig-single-action",
            env,
            "one learned step size for each task is no improvement on a tuned one",
            by.is_no_better("single", "fixed"),
        )
        for what in ("trees", "split", "lambda"):
            statement = f"another {_SETTINGS[what]} changes little"
            yield Fact(f"sensitivity.{env}.{what}", "facts", env, statement, by.alike(f"other {what}", "metafqi"))


_PARTICULAR = (
    Fact(
        "fig2.nav2d.slowing",
        "fig2",
        "nav2d",
        "metaFQI starts with large steps and slows down",
        course.first_steps_larger(3),
    ),
    Fact(
        "context.nav2d",
        "fig-context",
        "nav2d",
        "little is lost without the context",
        by.little_lost("metafqi", "without context"),
    ),
    Fact(
        "fig2.minigolf.convergence",
        "fig2",
        "minigolf",
        "metaFQI has converged after about 10 updates",
        course.converged_after(10),
    ),
    Fact(
        "fig2.minigolf.short",
        "fig2",
        "minigolf",
        "fixed steps end short of what metaFQI reaches",
        by.beats_fixed(at_the_end=True),
        is_win=True,
    ),
    Fact(
        "context.minigolf",
        "fig-context",
        "minigolf",
        "little is lost without the context",
        by.little_lost("metafqi", "without context"),
    ),
    Fact(
        "fig2.cartpole.early",
        "fig2",
        "cartpole",
        "high fixed steps are ahead of metaFQI in the first updates",
        course.high_rates_ahead_at_first(2),
    ),
    Fact(
        "fig2.cartpole.small",
        "fig2",
        "cartpole",
        "metaFQI's steps are small: below a half of the largest on average",
        course.steps_within(0.0, 5.0),
    ),
    Fact(
        "fig2.cartpole.greedy",
        "fig2",
        "cartpole",
        "N = 1 is ahead of planning in the first updates and behind it overall",
        course.greedy_only_at_first(2),
        is_win=True,
    ),
    Fact(
        "fig2.cartpole.cautious",
        "fig2",
        "cartpole",
        "the more updates are planned, the smaller the steps",
        course.more_cautious_with_n,
    ),
    Fact(
        "fig2.cartpole.unfinished",
        "fig2",
        "cartpole",
        "learning is far from convergence after 15 updates",
        course.still_learning_after(15),
    ),
    Fact(
        "cartpole60.tuned",
        "fig-cartpole60",
        "cartpole",
        "over 60 updates the best fixed step is 1.8, up to a grid step",
        by.tuned_near("fixed", "stepsize", 1.8, "longer"),
    ),
    Fact(
        "cartpole60.beats",
        "fig-cartpole60",
        "cartpole",
        "over 60 updates metaFQI learns faster than the step tuned for them",
        by.beats("metafqi", "fixed", "longer"),
        is_win=True,
    ),
    Fact(
        "context.cartpole",
        "fig-context",
        "cartpole",
        "seeing the context helps",
        by.beats("metafqi", "without context"),
    ),
    Fact(
        "swingup.like",
        "fig-swingup",
        "swingup",
        "metaFQI does as well as a fixed step of 0.1",
        by.alike("metafqi", "h = 0.1"),
    ),
    Fact(
        "swingup.tuned",
        "fig-swingup",
        "swingup",
        "the best fixed step is 0.1, up to a grid step",
        by.tuned_near("fixed", "stepsize", 0.1),
    ),
    Fact(
        "swingup.iterations", "fig-swingup", "swingup", "all iterations do about equally well", course.iterations_alike
    ),
    Fact(
        "swingup.steps",
        "fig-swingup",
        "swingup",
        "after two updates metaFQI's steps are about 0.1",
        course.steps_within(0.05, 0.15, after=2),
    ),
    Fact(
        "swingup.first",
        "fig-swingup",
        "swingup",
        "metaFQI's first two steps are larger than the later ones",
        course.first_steps_larger(2),
    ),
    Fact(
        "fig2.halfcheetah.steps",
        "fig2",
        "halfcheetah",
        "metaFQI's steps lie between 0.2 and 0.4",
        course.steps_within(0.2, 0.4),
    ),
    Fact(
        "fig2.halfcheetah.same",
        "fig2",
        "halfcheetah",
        "fixed steps in that range do not gain as much",
        by.beats_fixed(0.2, 0.4),
        is_win=True,
    ),
    Fact(
        "robust.halfcheetah.states",
        "fig-robust",
        "halfcheetah",
        "the random state of the forest matters little",
        course.states_matter_little,
    ),
    Fact(
        "robust.halfcheetah.double",
        "fig-robust",
        "halfcheetah",
        "double Q learns faster than single Q",
        course.double_beats_single,
    ),
)

FACTS: tuple[Fact, ...] = (*_everywhere(), *_PARTICULAR)


def facts_of(environment: str) -> tuple[Fact, ...]:
    """The facts about an environment."""
    return tuple(fact for fact in FACTS if fact.environment == environment)
