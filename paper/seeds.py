"""Several seeds side by side: one verdict for each claim, and the paper's facts under two readings of it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from metastep.report.document import Command, Heading, Paragraph, Part, Table
from paper.outcome import Outcome, Verdict

Row = Sequence[Outcome]
"""What several seeds found of one claim."""


class Tally(NamedTuple):
    """How many claims hold, do not hold, and cannot be told."""

    hold: int
    refuted: int
    untold: int

    def __str__(self) -> str:
        return ", ".join(map(str, self))


def by_claim(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Outcomes of several seeds, side by side.

    A fact that was not measured at a seed is missing there, so facts are found by what they say. The claims of a figure may
    tell what was selected, which differs between seeds; but all are there each time, in the same order.
    """
    groups: dict[tuple[str, str, str | int], list[Outcome]] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for outcome in outcomes:
        place = (outcome.command, outcome.id, outcome.environment)
        counts[place] = counts.get(place, 0) + 1
        which = outcome.claim if outcome.id == "facts" else counts[place]
        groups.setdefault((outcome.id, outcome.environment, which), []).append(outcome)
    return list(groups.values())


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Of several seeds: what more than half of them say, if none says the opposite."""
    held, refuted = verdicts.count("holds"), verdicts.count("does not hold")
    if not refuted and 2 * held > len(verdicts):
        return "holds"
    return "does not hold" if not held and 2 * refuted > len(verdicts) else "not distinguishable"


def tally(verdicts: Sequence[Verdict]) -> Tally:
    """Verdicts counted."""
    return Tally(*(verdicts.count(word) for word in ("holds", "does not hold", "not distinguishable")))


def told(rows: Sequence[Row], what: str) -> str:
    """How many claims hold over all seeds, in a sentence."""
    found = _over_seeds(rows)
    return f"Of {len(rows)} {what} {found.hold} hold, {found.refuted} do not, and the rest are not distinguishable."


def measured(row: Row) -> str:
    """The effects of all seeds, with what they measure: once where that is the same for all."""
    if len({outcome.quantity for outcome in row}) == 1:
        return f"{row[0].quantity}: " + "; ".join(f"**{outcome.measured()}**" for outcome in row)
    return "; ".join(f"{outcome.quantity}: **{outcome.measured()}**" for outcome in row)


def counted(row: Row) -> str:
    """How many tasks, of how many seeds."""
    times = f"{len(row)} x " if len(row) > 1 else ""
    return f"{times}{row[0].num} {row[0].counted}"


def facts_of_readings(facts: Sequence[Row], first: Sequence[Row]) -> list[Part]:
    """The facts under the presets' reading beside those under the first one: counted, then one by one."""
    chosen, before = _by_environment(facts), _by_environment(first)
    found, earlier = _over_seeds(facts), _over_seeds(first)
    sentence = (
        f"{told(facts, 'facts of the paper')} Under the first reading {earlier.hold} of {len(first)} hold and "
        f"{earlier.refuted} do not: {found.hold - earlier.hold:+d} and {found.refuted - earlier.refuted:+d}."
    )
    header: list[str] = ["environment", "facts", "hold, do not, cannot be told", "first reading"]
    counts = [_over_seeds]
    if any(len(row) > 1 for row in facts):
        header += ["seed by seed", "first reading, seed by seed"]
        counts.append(_each_seed)
    groups = [*((env, rows, before.get(env, [])) for env, rows in chosen.items()), ("together", facts, first)]
    cells = [
        (env, str(len(rows)), *(str(count(some)) for count in counts for some in (rows, others)))
        for env, rows, others in groups
    ]
    parts: list[Part] = [Heading("The paper's facts"), Paragraph(sentence), Table(header, cells)]
    for env, rows in chosen.items():
        parts += [Heading(f"Facts about {env}"), *_commands(rows, before.get(env, ()))]
        parts.append(_facts_table(rows, before.get(env, ())))
    return parts


def _facts_table(rows: Sequence[Row], before: Sequence[Row]) -> Table:
    earlier = {row[0].claim: row for row in before}
    header = ("fact", "measured effect [95 % interval]", "n", "verdict", "under the first reading", "verdict there")
    cells = [
        (row[0].claim, measured(row), counted(row), _judged(row), *_cells_of_first(earlier.get(row[0].claim)))
        for row in rows
    ]
    return Table(header, cells)


def _cells_of_first(row: Row | None) -> tuple[str, str]:
    return ("; ".join(outcome.measured() for outcome in row), _judged(row)) if row else ("", "")


def _judged(row: Row) -> str:
    """The verdict, and how many of several seeds say so."""
    verdict = overall([outcome.verdict for outcome in row])
    if len(row) == 1:
        return f"**{verdict}**"
    found = tally([outcome.verdict for outcome in row])
    return f"**{verdict}** ({found.hold} hold, {found.refuted} not)"


def _commands(*groups: Sequence[Row]) -> Iterator[Part]:
    """What to type to see the outcomes again, each command once."""
    typed = {outcome.command: None for rows in groups for row in rows for outcome in row}
    yield Command("\n".join(typed))


def _by_environment(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[0].environment, []).append(row)
    return found


def _over_seeds(rows: Sequence[Row]) -> Tally:
    return tally([overall([outcome.verdict for outcome in row]) for row in rows])


def _each_seed(rows: Sequence[Row]) -> Tally:
    return tally([outcome.verdict for row in rows for outcome in row])
