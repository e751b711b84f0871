"""What a recurrence is worth: the joint law, and the Chinchilla law it becomes without φ."""

import pandas as pd

from analysis.laws import batched
from analysis.laws.law import Coefficient, Exponent, Law

# The box of arXiv:2604.21106.
COEFFICIENTS = {
    "E": Coefficient("E", -3.0, 2.0),
    "A": Coefficient("A", -5.0, 35.0),
    "B": Coefficient("B", -5.0, 35.0),
}
PHI = Exponent("φ", -3.0, 3.0, acts_on="r")
ALPHA_BETA = {
    "alpha": Exponent("α", 0.0, 2.5, acts_on="N", coefficient="A"),
    "beta": Exponent("β", 0.0, 2.5, acts_on="D", coefficient="B"),
}

#: arXiv:2604.21106. φ = 0: repeating adds nothing; φ = 1: as much as unshared layers.
JOINT = Law(
    name="joint",
    formula="L = E + A·(N_once + r^φ·N_rec)^−α + B·D^−β",
    exponents={"phi": PHI, **ALPHA_BETA},
    coefficients=COEFFICIENTS,
    columns=lambda p, runs: (
        1.0,
        runs.n_effective(p["phi"]) ** -p["alpha"],
        runs.tokens ** -p["beta"],
    ),
    solver=batched.SOLVER,
)

#: Hoffmann et al. 2022, arXiv:2203.15556, equation 2; every parameter counts once.
CHINCHILLA = Law(
    name="chinchilla",
    formula="L = E + A·(N_once + N_rec)^−α + B·D^−β",
    exponents=ALPHA_BETA,
    coefficients=COEFFICIENTS,
    columns=lambda p, runs: (
        1.0,
        runs.n_effective(0.0) ** -p["alpha"],
        runs.tokens ** -p["beta"],
    ),
    solver=batched.SOLVER,
)


def joint(_: pd.DataFrame) -> Law:
    return JOINT


def chinchilla(_: pd.DataFrame) -> Law:
    return CHINCHILLA
