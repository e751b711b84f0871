"""The joint law with one exponent over both terms, so that size and data need not add up."""

from dataclasses import replace

import pandas as pd

from analysis.laws import least_squares
from analysis.laws.joint import JOINT
from analysis.laws.law import Exponent, Law

JOINT_GAMMA = replace(
    JOINT,
    name="joint_gamma",
    formula="L = E + (A·(N_once + r^φ·N_rec)^−α + B·D^−β)^γ",
    exponents={**JOINT.exponents, "gamma": Exponent("γ", 0.05, 3.0)},
    combine=lambda p, terms: terms[0] + (terms[1] + terms[2]) ** p["gamma"],
    solver=least_squares.SOLVER,
)


def joint_gamma(_: pd.DataFrame) -> Law:
    return JOINT_GAMMA
