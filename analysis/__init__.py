"""Scaling laws and measurements of looped language models, from tables of runs; needs no JAX.

    from analysis import load_runs, fit_joint, bootstrap_fit

    table = load_runs("runs/")  # a folder of run folders, or a CSV
    fit = fit_joint(table)
    resampled = bootstrap_fit(table, fit)
    print(fit.params["phi"], resampled.interval("phi"))

:func:`fit_study` makes everything that ``python -m analysis fit`` prints.
"""

from analysis import missing_package as missing_package  # first: it tells what the others lack
from analysis.errors import AnalysisError, InputError, NotIdentifiedError
from analysis.laws.laws import ChinchillaLaw, Injection, JointLaw, book_injection
from analysis.scaling.allocation import Allocation, allocate
from analysis.scaling.bootstrap import Bootstrap, bootstrap_fit
from analysis.scaling.fit import FitResult, fit_chinchilla, fit_joint
from analysis.scaling.isoflop import IsoFlopCurve, exponents, isoflop_curves
from analysis.scaling.splits import leave_out
from analysis.scaling.study import Settings, Study, fit_study
from analysis.tables.runs import Dropped, RunTable, load_runs

__all__ = [
    "Allocation",
    "AnalysisError",
    "Bootstrap",
    "ChinchillaLaw",
    "Dropped",
    "FitResult",
    "Injection",
    "InputError",
    "IsoFlopCurve",
    "JointLaw",
    "NotIdentifiedError",
    "RunTable",
    "Settings",
    "Study",
    "allocate",
    "book_injection",
    "bootstrap_fit",
    "exponents",
    "fit_chinchilla",
    "fit_joint",
    "fit_study",
    "isoflop_curves",
    "leave_out",
    "load_runs",
]
