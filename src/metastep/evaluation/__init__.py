"""Fair comparisons: methods, tuning, the paired run on test tasks, statistics, and results on disk."""

from metastep.evaluation.comparison import Comparison, compare
from metastep.evaluation.files import differences_to_csv, load, save, to_parquet
from metastep.evaluation.methods import (
    Method,
    MethodRecord,
    TaskSource,
    metafqi_method,
    oracle_method,
    single_action_method,
)
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
from metastep.evaluation.tuning import FAMILIES, Family, Tuning, TuningTable, tune

__all__ = [
    "FAMILIES",
    "Comparison",
    "Difference",
    "Family",
    "Method",
    "MethodRecord",
    "OracleScore",
    "Summary",
    "TaskSource",
    "Tuning",
    "TuningTable",
    "all_differences",
    "compare",
    "differences",
    "differences_to_csv",
    "filled_returns",
    "load",
    "metafqi_method",
    "metric_values",
    "oracle_method",
    "oracle_scores",
    "save",
    "single_action_method",
    "summary",
    "to_parquet",
    "tune",
]
