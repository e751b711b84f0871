"""Scaling laws of looped language models from tables of runs; needs no JAX.

from analysis import load_runs
table = load_runs("runs/")
"""

from analysis.errors import AnalysisError, InputError, NotIdentifiedError
from analysis.laws import ChinchillaLaw, Injection, JointLaw, book_injection
from analysis.runs import Dropped, RunTable, load_runs

__all__ = [
    "AnalysisError",
    "ChinchillaLaw",
    "Dropped",
    "Injection",
    "InputError",
    "JointLaw",
    "NotIdentifiedError",
    "RunTable",
    "book_injection",
    "load_runs",
]
