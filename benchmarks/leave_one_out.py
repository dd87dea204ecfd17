"""Leave one family out: a model fitted on the data of the other families, on test tasks of the one left out.

    python benchmarks/leave_one_out.py runs/pendulum-ppo runs/acrobot-ppo runs/cartpole-ppo runs/mountaincar-ppo

Each folder is a finished run with its tuned baselines. The model has neither data nor validation tasks of the family that it is
judged on; tasks, first policies and simulation keys are those of the run's own methods, so that differences are paired.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from metastep._core.progress import Terminal
from metastep.evaluation import differences, summary
from metastep.experiments.pooling import judged, pooled
from metastep.experiments.run import Run
from shared import save

NAME = "other families"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    folders = [Run.open(path) for path in parser.parse_args().runs]
    console, figures = Console(), {}
    for left in folders:
        family, seed = left.config.env.name, left.config.seed
        model = pooled([folder for folder in folders if folder is not left], tracker=Terminal())
        comparison = judged(model, left, NAME, tracker=Terminal())
        if comparison is None:
            raise SystemExit(f"{left.path} holds no comparison; finish it with `metastep run` first.")
        against = {row.baseline: row for row in differences(comparison, NAME, seed=seed)}
        table = Table(title=f"{family} left out, {comparison.num_tasks} test tasks")
        for heading in ("method", "mean return over the updates", f"{NAME} minus it", "verdict"):
            table.add_column(heading)
        for row in summary(comparison, seed=seed):
            minus = against.get(row.method)
            table.add_row(
                comparison.label(row.method),
                f"{row.auc.mean:.4g} [{row.auc.low:.4g}, {row.auc.high:.4g}]",
                f"{minus.mean:.3g} [{minus.low:.3g}, {minus.high:.3g}]" if minus else "",
                minus.verdict if minus else "",
            )
        console.print(table)
        figures[family] = [row._asdict() for row in against.values()]
    save(console, "leave-one-out", figures)


if __name__ == "__main__":
    main()
