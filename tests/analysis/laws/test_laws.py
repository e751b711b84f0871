import numpy as np
import pandas as pd
import pytest

from analysis import AnalysisError, ChinchillaLaw, JointLaw, book_injection

LAW = JointLaw(E=1.5, A=30.0, B=800.0, alpha=0.2, beta=0.35, phi=0.5)


def test_joint_law_by_hand():
    n_effective = 1e6 + 4**0.5 * 2e6
    assert LAW.n_effective(1e6, 2e6, 4) == pytest.approx(n_effective, rel=1e-14)
    expected = 1.5 + 30 * n_effective**-0.2 + 800 * 1e9**-0.35
    assert LAW.predict(1e6, 2e6, 4, 1e9) == pytest.approx(expected, rel=1e-14)


def test_joint_law_is_the_chinchilla_law_in_effective_parameters():
    n = LAW.n_effective(1e6, 2e6, 4)
    assert LAW.predict(1e6, 2e6, 4, 1e9) == LAW.chinchilla.predict(n, 1e9)
    assert ChinchillaLaw(1.5, 30.0, 800.0, 0.2, 0.35) == LAW.chinchilla


def test_one_recurrence_makes_phi_and_the_split_irrelevant():
    other = JointLaw(**{**LAW.params(), "phi": -2.0})
    np.testing.assert_allclose(
        LAW.predict(0, 3e6, 1, 1e9), other.predict(1e6, 2e6, 1, 1e9), rtol=1e-14
    )


def test_integer_counts_do_not_overflow():
    n, tokens = np.array([10**12]), np.array([10**14])
    huge = LAW.predict(n, n, 8, tokens)
    np.testing.assert_allclose(huge, LAW.predict(1e12, 1e12, 8.0, 1e14), rtol=1e-14)


@pytest.mark.parametrize(
    ("choice", "n_once", "n_rec"),
    [("once", 110.0, 20.0), ("recurrent", 100.0, 30.0), ("excluded", 100.0, 20.0)],
)
def test_booking_of_the_injection(choice, n_once, n_rec):
    frame = pd.DataFrame({"n_once": [100], "n_rec": [20], "n_inject": [10]})
    booked = book_injection(frame, choice)
    assert booked["n_once"].item() == n_once
    assert booked["n_rec"].item() == n_rec
    pd.testing.assert_frame_equal(book_injection(booked, choice), booked)  # once is enough
    assert frame["n_once"].item() == 100


def test_unknown_booking_is_refused():
    frame = pd.DataFrame({"n_once": [100], "n_rec": [20], "n_inject": [10]})
    with pytest.raises(AnalysisError, match="'twice': choose one of once, recurrent, excluded"):
        book_injection(frame, "twice")
