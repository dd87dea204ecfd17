"""Fair comparisons: methods, tuning, the paired run on test tasks, statistics, and results on disk."""

from metastep.evaluation.comparison import Comparison, compare, join, load, require_alike, save, to_parquet
from metastep.evaluation.intervals import (
    bootstrap_interval,
    hierarchical_interval,
    holm,
    mean_interval,
    paired_test,
    verdict,
)
from metastep.evaluation.methods import Method, MethodRecord, MethodSpec
from metastep.evaluation.statistics import (
    Difference,
    Metric,
    OracleScore,
    SeedDifference,
    Summary,
    all_differences,
    differences,
    differences_over_seeds,
    differences_to_csv,
    filled_returns,
    metric_values,
    oracle_scores,
    summary,
)
from metastep.evaluation.tuning import TuningTable, tune

__all__ = ["Comparison", "compare", "join", "require_alike"]
__all__ += ["Method", "MethodRecord", "MethodSpec", "TuningTable", "tune"]
__all__ += ["differences_to_csv", "load", "save", "to_parquet"]
__all__ += ["Difference", "OracleScore", "Summary", "all_differences", "differences"]
__all__ += ["filled_returns", "metric_values", "oracle_scores", "summary"]
__all__ += ["SeedDifference", "differences_over_seeds", "hierarchical_interval"]
__all__ += ["Metric", "bootstrap_interval", "holm", "mean_interval", "paired_test", "verdict"]
