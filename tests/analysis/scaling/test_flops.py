"""The FLOPs function of width is exact or refused."""

import numpy as np
import pandas as pd
import pytest

from analysis.errors import InputError
from analysis.scaling.flops import architecture, architectures
from tests.analysis import laptop_study


@pytest.fixture
def runs() -> pd.DataFrame:
    return pd.DataFrame(laptop_study.study())


@pytest.mark.parametrize("r", [1, 2, 4, 8])
def test_a_width_that_was_not_trained_is_predicted_exactly(runs, r):
    design = architecture(runs, r)
    wanted = laptop_study.shape(r, 1536)
    for name in ("n_once", "n_rec", "n_inject", "flops_per_token"):
        np.testing.assert_allclose(getattr(design, name)(1536), wanted[name], rtol=1e-10)
    assert (design.d_min, design.d_max) == (16, 48)


def test_every_r_has_its_architecture(runs):
    assert list(architectures(runs)) == [1, 2, 4, 8]


def test_effective_parameters_follow_the_booking(runs):
    design = architecture(runs, 4)
    once, rec, inject = (laptop_study.shape(4, 32)[n] for n in ("n_once", "n_rec", "n_inject"))
    phi = 0.5
    for booking, wanted in (
        ("once", once + inject + 2 * rec),
        ("recurrent", once + 2 * (rec + inject)),
        ("excluded", once + 2 * rec),
    ):
        np.testing.assert_allclose(design.n_effective(phi, booking)(32), wanted, rtol=1e-12)


def test_a_table_without_widths_is_refused(runs):
    with pytest.raises(InputError, match="needs a column d_model"):
        architecture(runs.drop(columns="d_model"), 1)


def test_two_widths_cannot_be_checked(runs):
    with pytest.raises(InputError, match=r"r = 2: 2 distinct d_model; .* at least 3"):
        architecture(runs[runs["d_model"].isin([16, 24])], 2)


def test_two_architectures_under_one_r_are_refused(runs):
    odd = (runs["r"] == 4) & (runs["d_model"] == 32)
    runs.loc[odd, "flops_per_token"] += 6 * 32  # one more column in the unembedding
    with pytest.raises(InputError, match=r"flops_per_token of run .* more than one architecture"):
        architecture(runs, 4)
