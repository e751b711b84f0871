"""Scaling laws and measurements of looped language models, from tables of runs; needs no JAX.

    from analysis import load_runs, fit, bootstrap_fit

    table = load_runs("runs/")  # a folder of run folders, or a CSV
    joint = fit(table)
    print(joint, bootstrap_fit(table, joint).interval("phi"))

:func:`fit_study` makes everything that ``python -m analysis fit`` prints.
"""

# The first, since it tells which package the others lack.
from analysis.errors import AnalysisError, InputError, NotIdentifiedError
from analysis.laws.catalogue import LAWS
from analysis.laws.counting import Injection, book_injection
from analysis.laws.law import FittedLaw, Law, Runs
from analysis.scaling.allocation import Allocation, allocate
from analysis.scaling.bootstrap import Bootstrap, bootstrap_fit
from analysis.scaling.fit import FitResult, fit
from analysis.scaling.isoflop import IsoFlopCurve, exponents, isoflop_curves
from analysis.scaling.study import Settings, Study, fit_study
from analysis.tables.runs import Dropped, RunTable, load_runs

__all__ = [
    "LAWS",
    "Allocation",
    "AnalysisError",
    "Bootstrap",
    "Dropped",
    "FitResult",
    "FittedLaw",
    "Injection",
    "InputError",
    "IsoFlopCurve",
    "Law",
    "NotIdentifiedError",
    "RunTable",
    "Runs",
    "Settings",
    "Study",
    "allocate",
    "book_injection",
    "bootstrap_fit",
    "exponents",
    "fit",
    "fit_study",
    "isoflop_curves",
    "load_runs",
]
