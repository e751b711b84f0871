"""The joint law where data feel recurrences too: every token counts r^ψ times."""

from dataclasses import replace

import pandas as pd

from analysis.laws import least_squares
from analysis.laws.joint import JOINT
from analysis.laws.law import Exponent, Law

JOINT_DATA = replace(
    JOINT,
    name="joint_data",
    formula="L = E + A·(N_once + r^φ·N_rec)^−α + B·(D·r^ψ)^−β",
    exponents={**JOINT.exponents, "psi": Exponent("ψ", -1.0, 1.0, acts_on="r")},
    columns=lambda p, runs: JOINT.columns(
        p, replace(runs, tokens=runs.tokens * runs.r ** p["psi"])
    ),
    solver=least_squares.SOLVER,
)


def joint_data(_: pd.DataFrame) -> Law:
    return JOINT_DATA
