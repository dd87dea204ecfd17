"""Fair comparisons: methods, tuning, the paired run on test tasks, statistics, and results on disk."""

from metastep.evaluation.comparison import Comparison, compare, join, require_alike
from metastep.evaluation.files import differences_to_csv, load, save, to_parquet
from metastep.evaluation.methods import Method, MethodRecord, MethodSpec
from metastep.evaluation.statistics import (
    Difference,
    OracleScore,
    Summary,
    all_differences,
    differences,
    filled_returns,
    metric_values,
    oracle_scores,
    summary,
)
from metastep.evaluation.tuning import TuningTable, tune

__all__ = [
    "Comparison",
    "Difference",
    "Method",
    "MethodRecord",
    "MethodSpec",
    "OracleScore",
    "Summary",
    "TuningTable",
    "all_differences",
    "compare",
    "differences",
    "differences_to_csv",
    "filled_returns",
    "join",
    "load",
    "metric_values",
    "oracle_scores",
    "require_alike",
    "save",
    "summary",
    "to_parquet",
    "tune",
]
