"""Fair comparisons: methods, tuning, the paired run on test tasks, statistics, and results on disk."""

from metastep.evaluation import methods as baselines
from metastep.evaluation.comparison import Comparison, compare, join, load, require_alike, save, to_parquet
from metastep.evaluation.methods import Method, MethodRecord, MethodSpec, TuningTable, tune
from metastep.evaluation.statistics import Difference, differences, metric_values, oracle_scores, summary

__all__ = ["Comparison", "Difference", "Method", "MethodRecord", "MethodSpec", "TuningTable", "baselines", "compare"]
__all__ += ["differences", "join", "load", "metric_values", "oracle_scores", "require_alike", "save", "summary"]
__all__ += ["to_parquet", "tune"]
