"""The joint law with an irreducible loss of its own for every r."""

from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.errors import NotIdentifiedError
from analysis.laws import least_squares
from analysis.laws.joint import JOINT
from analysis.laws.law import Coefficient, Law, Runs, Values


def joint_floors(counted: pd.DataFrame) -> Law:
    """One coefficient E_r for each value of r in the table."""
    values = [float(r) for r in sorted(counted["r"].unique())]
    floor = JOINT.coefficients["E"]
    floors = {f"E_{r:g}": Coefficient(f"E_{r:g}", floor.log_low, floor.log_high) for r in values}

    def columns(p: Values, runs: Runs):
        if unseen := sorted(set(np.unique(runs.r)) - set(values)):
            raise NotIdentifiedError(f"joint_floors law: no run tells E_r of r = {unseen[0]:g}")
        _, size, data = JOINT.columns(p, runs)
        return (*((runs.r == r).astype(float) for r in values), size, data)

    return replace(
        JOINT,
        name="joint_floors",
        formula="L = E_r + A·(N_once + r^φ·N_rec)^−α + B·D^−β",
        coefficients={**floors, **{n: JOINT.coefficients[n] for n in ("A", "B")}},
        columns=columns,
        solver=least_squares.SOLVER,
    )
