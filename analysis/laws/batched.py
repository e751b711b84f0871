"""The batched solver behind the interface of all solvers: project from anywhere, then polish."""

import numpy as np

from analysis.laws.counting import FloatArray
from analysis.laws.newton import minimise
from analysis.laws.power_laws import ALPHA, PowerLaws, columns_of
from analysis.laws.problem import Minima, Problem, Solver
from analysis.laws.projection import project


def solve(problem: Problem, exponents_SJ: FloatArray, weights_SN: FloatArray) -> Minima:
    """One fit for each row of exponents to start from; ``weights_SN`` may have one row for all."""
    power_laws, at = PowerLaws.of(problem), columns_of(problem)
    shape_S3 = np.zeros((len(exponents_SJ), 3))
    shape_S3[:, np.array(at[problem.n_coefficients :]) - ALPHA] = exponents_SJ
    ends = minimise(power_laws, project(power_laws, shape_S3, weights_SN), weights_SN)
    return Minima(ends.theta_SP[:, at], ends.objective_S, ends.converged_S)


SOLVER = Solver(solve, starts=500, resample_starts=2)
