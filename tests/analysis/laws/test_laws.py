"""Laws are data: what they predict, and that every one of them is fitted by the general solver."""

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis import LAWS, AnalysisError, FittedLaw, NotIdentifiedError, Runs, book_injection
from analysis.laws import least_squares
from analysis.laws.catalogue import law_for
from analysis.laws.joint import CHINCHILLA
from analysis.laws.problem import Problem
from tests.analysis.laptop_study import joint_law

LAW = joint_law(E=1.5, A=30.0, B=800.0, alpha=0.2, beta=0.35, phi=0.5)


def test_joint_law_by_hand():
    runs = Runs.from_counts(1e6, 2e6, 4, 1e9)
    n_effective = 1e6 + 4**0.5 * 2e6
    assert runs.n_effective(0.5) == pytest.approx(n_effective, rel=1e-14)
    expected = 1.5 + 30 * n_effective**-0.2 + 800 * 1e9**-0.35
    assert LAW.predict(runs) == pytest.approx(expected, rel=1e-14)


def test_joint_law_is_the_chinchilla_law_in_effective_parameters():
    n = Runs.from_counts(1e6, 2e6, 4, 1e9).n_effective(0.5)
    flat = FittedLaw(CHINCHILLA, {k: v for k, v in LAW.params.items() if k != "phi"})
    assert LAW.predict(Runs.from_counts(1e6, 2e6, 4, 1e9)) == flat.predict(
        Runs.from_counts(n, 0, 1, 1e9)
    )


def test_one_recurrence_makes_phi_and_the_split_irrelevant():
    other = joint_law(**{**LAW.params, "phi": -2.0})
    np.testing.assert_allclose(
        LAW.predict(Runs.from_counts(0, 3e6, 1, 1e9)),
        other.predict(Runs.from_counts(1e6, 2e6, 1, 1e9)),
        rtol=1e-14,
    )


def test_integer_counts_do_not_overflow():
    n, tokens = np.array([10**12]), np.array([10**14])
    huge = LAW.predict(Runs.from_counts(n, n, 8, tokens))
    floats = LAW.predict(Runs.from_counts(1e12, 1e12, 8.0, 1e14))
    np.testing.assert_allclose(huge, floats, rtol=1e-14)


@pytest.mark.parametrize("name", LAWS)
def test_parameters_make_the_round_trip_through_theta(published, name):
    law = law_for(name, published.booked)
    theta = np.random.default_rng(0).uniform(0.1, 0.9, (3, len(law.theta_names)))
    params = law.params(theta)
    assert list(law.params(theta[1])) == list(params)
    assert set(params) == set(law.names) == set(law.symbols)
    assert law.params(theta[1])[law.names[0]] == params[law.names[0]][1]


# Objectives: the guide certifies the first two; the rest were found by both solvers or by restarts.
@pytest.mark.parametrize(
    ("name", "objective", "expected"),
    [
        ("joint", 2.8288178e-4, {"phi": 0.45759}),
        ("chinchilla", 7.6049649e-4, {"E": 1.69589}),
        ("joint_data", 2.8141362e-4, {"phi": 0.40787, "psi": 0.02864}),
        ("joint_floors", 2.5650216e-4, {"phi": 0.52947, "E_1": 1.58189, "E_8": 1.59551}),
        ("joint_gamma", 1.5984053e-4, {"phi": 0.46813, "gamma": 0.38367}),
    ],
)
def test_the_general_solver_reaches_the_optimum_of_every_law(published, name, objective, expected):
    law = law_for(name, published.booked)
    problem = Problem.of(law, published.booked)
    starts = problem.random_starts(3, np.random.default_rng(0))
    ends = least_squares.solve(problem, starts, np.ones((1, 116)))
    assert ends.converged_S.all()
    np.testing.assert_allclose(ends.objective_S, objective, rtol=1e-6)
    params = law.params(ends.theta_SP[0])
    assert {n: params[n] for n in expected} == pytest.approx(expected, abs=2e-5)


def test_both_solvers_agree_on_weighed_runs(published):
    law = law_for("joint", published.booked)
    problem = Problem.of(law, published.booked, {"phi": 0.6})
    weights = np.random.default_rng(1).integers(0, 3, (1, 116)).astype(float)
    starts = problem.random_starts(2, np.random.default_rng(2))
    batched = law.solver.solve(problem, starts, weights)
    single = least_squares.solve(problem, starts, weights)
    np.testing.assert_allclose(single.objective_S, batched.objective_S, rtol=1e-8)
    np.testing.assert_allclose(single.theta_SP, batched.theta_SP, rtol=1e-4)


def test_a_floor_for_every_r_of_the_table(published):
    few = published.select(published.runs["r"] < 8)
    fitted = analysis.fit(few, "joint_floors", starts=2)
    assert [n for n in fitted.params if n.startswith("E")] == ["E_1", "E_2", "E_4"]
    with pytest.raises(NotIdentifiedError, match="no run tells E_r of r = 8"):
        fitted.predict(published.runs)


def test_without_phi_a_floor_for_every_r_is_hardly_better_than_phi(published):
    floors = analysis.fit(published, "joint_floors", phi=0.0, starts=2)
    assert floors.objective == pytest.approx(2.780e-4, abs=1e-7)


def test_unknown_law():
    with pytest.raises(AnalysisError, match="law 'power': choose one of joint, chinchilla"):
        law_for("power", pd.DataFrame())


def test_a_law_without_phi_has_none_to_hold(published):
    with pytest.raises(AnalysisError, match=r"phi 0\.5: the chinchilla law has no φ to hold"):
        analysis.fit(published, "chinchilla", phi=0.5)


@pytest.mark.parametrize(
    ("choice", "n_once", "n_rec"),
    [("once", 110.0, 20.0), ("recurrent", 100.0, 30.0), ("excluded", 100.0, 20.0)],
)
def test_counting_the_injection(choice, n_once, n_rec):
    frame = pd.DataFrame({"n_once": [100], "n_rec": [20], "n_inject": [10]})
    counted = book_injection(frame, choice)
    assert counted["n_once"].item() == n_once
    assert counted["n_rec"].item() == n_rec
    pd.testing.assert_frame_equal(book_injection(counted, choice), counted)  # once is enough
    assert frame["n_once"].item() == 100


def test_an_unknown_count_is_refused():
    frame = pd.DataFrame({"n_once": [100], "n_rec": [20], "n_inject": [10]})
    with pytest.raises(AnalysisError, match="'twice': choose one of once, recurrent, excluded"):
        book_injection(frame, "twice")
