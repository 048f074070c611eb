"""Offline evaluation: how much of a model's accuracy a method retains at a budget.

results = covist.eval.evaluate("covist-fixed,covist-pro,random", "128,64", limit=50, out="results")
print(results)
"""

from covist.eval.calibrating import Calibrated, calibrate
from covist.eval.data import read_data
from covist.eval.metrics import metric_names
from covist.eval.questions import Question
from covist.eval.results import Difference, Results, Score
from covist.eval.runner import evaluate, method_names
from covist.eval.suite import SUITES, Item, Suite, load_suite
from covist.eval.tuning import Tuned, tune

__all__ = [
    "SUITES",
    "Calibrated",
    "Difference",
    "Item",
    "Question",
    "Results",
    "Score",
    "Suite",
    "Tuned",
    "calibrate",
    "evaluate",
    "load_suite",
    "method_names",
    "metric_names",
    "read_data",
    "tune",
]
