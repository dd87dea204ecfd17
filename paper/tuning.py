"""Table 1: the tuned initial values, beside the paper's."""

import numpy as np

from metastep.evaluation import TuningTable, join
from paper.claims import AUC, paired, small
from paper.columns import Column, Figure
from paper.outcome import at_most
from paper.workbench import PresetRun


def _beside_the_papers(run: PresetRun) -> Column:
    """Test each method of the paper's table with our tuned values and with the paper's."""
    paper = run.environment.tuned
    theirs = [run.with_values(name, values, f"{name}-paper") for name, values in paper.items()]
    with_theirs = run.kept("paper-values", lambda: run.test(theirs))
    comparison = join([run.tested(*paper), with_theirs])
    tables = {table.method: table for table in comparison.tuning}
    values = [(tables[name], parameter, value) for name in paper for parameter, value in paper[name].items()]
    same = sum(bool(np.isclose(table.chosen[parameter], value)) for table, parameter, value in values)
    judged = small(
        run,
        comparison,
        [row for name in paper for row in paired(run, comparison, name, [f"{name}-paper"])],
        "The paper's tuned initial values are as good here as those of our own grid search",
        at_most,
        quantity=f"what they cost where they cost most, {{target}}: {AUC}",
    ).adding(f"{same} of {len(values)} values are the same")
    rows = [
        {
            "method": table.method,
            "parameter": parameter,
            "tuned": table.chosen[parameter],
            "paper": value,
            "score_tuned": float(table.mean[table.best]),
            "score_paper": float(table.mean[_best_at(table, parameter, value)]),
            "standard_error": float(table.standard_error[table.best]),
            "at_edge_of_grid": parameter in table.at_edge,
            "num_tuning_tasks": table.num_tasks,
        }
        for table, parameter, value in values
    ]
    return Column([judged], [], comparison, rows=rows)


def _best_at(table: TuningTable, parameter: str, value: float) -> int:
    """Return the best point with one parameter held at the value of its grid nearest to the given one."""
    distance = np.abs(np.log(table.points[:, table.parameters.index(parameter)]) - np.log(value))
    return int(np.argmax(np.where(np.isclose(distance, distance.min()), table.mean, -np.inf)))


table1 = Figure("table1", "", _beside_the_papers, table="table1")
