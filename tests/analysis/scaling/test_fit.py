"""Fits held against certified optima, synthetic truth, invariances and what data cannot tell."""

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis import AnalysisError, FittedLaw, NotIdentifiedError, Runs, book_injection
from tests.analysis import laptop_study
from tests.analysis.laptop_study import joint_law

TRUTH = joint_law(E=1.57, A=28.45, B=887.5, alpha=0.2, beta=0.367, phi=0.46)
FEW = 30


def with_losses(frame: pd.DataFrame, law: FittedLaw, noise: float = 0.0, seed: int = 0):
    """The grid of a table with losses of a known law, log-normal noise on them."""
    rng = np.random.default_rng(seed)
    true = law.predict(Runs.of(book_injection(frame, "once")))
    return frame.assign(loss=true * np.exp(noise * rng.standard_normal(len(frame))))


@pytest.fixture(scope="module")
def fit(published):
    return analysis.fit(published)


# --- the published runs ------------------------------------------------------------------------


def test_certified_optimum_of_the_published_runs(fit):
    assert fit.objective == pytest.approx(2.8288178e-4, rel=1e-7)
    expected = {
        "phi": 0.4575855,
        "alpha": 0.2002506,
        "beta": 0.3669293,
        "E": 1.5688636,
        "A": 28.449698,
        "B": 887.53107,
    }
    assert fit.params == pytest.approx(expected, rel=1e-6)
    assert fit.r2 == pytest.approx(0.99720, abs=1e-5)
    assert fit.converged
    assert fit.at_bounds == ()
    assert fit.warnings("x") + fit.weaknesses("x") == []


def test_most_starts_reach_the_optimum(published):
    for seed in range(3):
        starts = analysis.fit(published, seed=seed).starts
        assert starts.n == 500
        assert starts.share >= 0.8


def test_published_numbers_of_the_joint_law(fit):
    assert fit.params["phi"] == pytest.approx(0.459, abs=0.005)
    assert fit.params["alpha"] == pytest.approx(0.199, abs=0.006)
    assert fit.params["beta"] == pytest.approx(0.369, abs=0.006)
    assert fit.params["E"] == pytest.approx(1.57, abs=0.01)
    assert fit.r2 == pytest.approx(0.9972, abs=0.0003)


# φ = 1 misses every looped run, so its R² feels the digitised losses more than the others do.
@pytest.mark.parametrize(
    ("phi", "alpha", "beta", "e", "r2", "r2_error"),
    [(0.0, 0.227, 0.390, 1.71, 0.9858, 3e-4), (1.0, 0.218, 0.410, 1.66, 0.9552, 1e-3)],
)
def test_published_numbers_with_phi_held(published, phi, alpha, beta, e, r2, r2_error):
    fit = analysis.fit(published, phi=phi, starts=FEW)
    assert fit.params["phi"] == phi
    assert fit.params["alpha"] == pytest.approx(alpha, abs=0.006)
    assert fit.params["beta"] == pytest.approx(beta, abs=0.006)
    assert fit.params["E"] == pytest.approx(e, abs=0.02)
    assert fit.r2 == pytest.approx(r2, abs=r2_error)
    assert "phi" not in fit.free


@pytest.mark.parametrize(
    ("injection", "phi"), [("once", 0.4576), ("recurrent", 0.4330), ("excluded", 0.4721)]
)
def test_booking_of_the_injection_moves_phi(published, injection, phi):
    assert analysis.fit(published, injection=injection, starts=FEW).params["phi"] == pytest.approx(
        phi, abs=1e-4
    )


@pytest.mark.parametrize(
    ("r", "a", "alpha", "b", "beta", "e", "objective", "r2"),
    [
        (1, 58, 0.251, 150, 0.267, 1.56, 5.84e-5, 0.9979),
        (2, 33, 0.216, 910, 0.365, 1.60, 5.27e-5, 0.9983),
        (4, 23, 0.191, 1300, 0.388, 1.56, 6.81e-5, 0.9976),
        (8, 41, 0.235, 780, 0.362, 1.69, 5.33e-5, 0.9980),
    ],
)
def test_published_numbers_of_one_architecture(published, r, a, alpha, b, beta, e, objective, r2):
    fit = analysis.fit(published.select(published.runs["r"] == r), "chinchilla", starts=FEW)
    assert fit.params["alpha"] == pytest.approx(alpha, abs=0.006)
    assert fit.params["beta"] == pytest.approx(beta, abs=0.006)
    assert fit.params["E"] == pytest.approx(e, abs=0.01)
    assert fit.params["A"] == pytest.approx(a, rel=0.03)
    assert fit.params["B"] == pytest.approx(b, rel=0.09)
    assert fit.objective == pytest.approx(objective, rel=0.02)
    assert fit.r2 == pytest.approx(r2, abs=2e-4)


# --- synthetic truth ---------------------------------------------------------------------------


def test_noise_free_truth_is_recovered(frame):
    fit = analysis.fit(with_losses(frame, TRUTH), starts=FEW)
    assert fit.params == pytest.approx(TRUTH.params, rel=1e-6)
    assert fit.rmse < 1e-9
    assert fit.starts.share > 0.8


@pytest.mark.parametrize("phi", [-0.3, 0.0, 1.0, 1.4])
def test_any_phi_is_recovered_under_noise(frame, phi):
    law = joint_law(**{**TRUTH.params, "phi": phi})
    fit = analysis.fit(with_losses(frame, law, noise=0.003, seed=1), starts=FEW)
    error = fit.condition.standard_errors
    assert fit.params["phi"] == pytest.approx(phi, abs=4 * error["phi"])
    assert fit.params["alpha"] == pytest.approx(0.2, abs=4 * error["alpha"])
    assert error["phi"] < 0.05


def test_outliers_hardly_move_the_fit(frame):
    spoiled = with_losses(frame, TRUTH, noise=0.002, seed=2)
    spoiled.loc[[5, 40, 77, 100], "loss"] *= 1.3
    assert analysis.fit(spoiled, starts=FEW).params["phi"] == pytest.approx(0.46, abs=0.03)


# --- invariances -------------------------------------------------------------------------------


def test_bits_instead_of_nats(frame, fit):
    bits = analysis.fit(frame.assign(loss=frame["loss"] / np.log(2)), starts=FEW)
    for name in ("phi", "alpha", "beta"):
        assert bits.params[name] == pytest.approx(fit.params[name], rel=1e-6)
    assert bits.params["E"] * np.log(2) == pytest.approx(fit.params["E"], rel=1e-6)
    assert bits.objective == pytest.approx(fit.objective, rel=1e-9)


def test_units_of_parameters_and_tokens(frame, fit):
    scaled = frame.copy()
    scaled[["n_once", "n_rec", "n_inject"]] /= 1e3
    scaled["tokens"] /= 1e6
    other = analysis.fit(scaled, starts=FEW)
    for name in ("phi", "alpha", "beta", "E"):
        assert other.params[name] == pytest.approx(fit.params[name], rel=1e-5)


def test_split_of_the_runs_without_recurrence(frame, fit):
    unlooped = frame["r"] == 1
    frame.loc[unlooped, "n_once"] = 0.3 * frame.loc[unlooped, "n_rec"]
    frame.loc[unlooped, "n_rec"] *= 0.7
    other = analysis.fit(frame, starts=FEW)
    assert other.params == pytest.approx(fit.params, rel=1e-6)


def test_order_of_the_runs(frame, fit):
    shuffled = analysis.fit(frame.sample(frac=1, random_state=3), starts=FEW)
    assert shuffled.params == pytest.approx(fit.params, rel=1e-6)


def test_integer_columns(frame, fit):
    integers = frame.astype(dict.fromkeys(("n_once", "n_rec", "n_inject", "tokens"), np.int64))
    assert analysis.fit(integers, starts=FEW).params == pytest.approx(fit.params, rel=1e-6)


def test_same_seed_same_result(published, fit):
    again = analysis.fit(published)
    assert again.params == fit.params
    assert again.starts == fit.starts


# --- what cannot be told -----------------------------------------------------------------------


def test_one_value_of_r_does_not_identify_phi(published):
    one = published.select(published.runs["r"] == 4)
    with pytest.raises(NotIdentifiedError, match="all 29 runs have r = 4"):
        analysis.fit(one)
    assert analysis.fit(one, phi=0.5, starts=FEW).params["phi"] == 0.5


def test_no_recurrent_part_does_not_identify_phi(frame):
    frame["n_once"] += frame["n_rec"]
    frame["n_rec"] = 0.0
    with pytest.raises(NotIdentifiedError, match="no recurrent part"):
        analysis.fit(frame)


def test_fewer_runs_than_parameters(published):
    with pytest.raises(NotIdentifiedError, match="6 runs cannot determine 6 parameters"):
        analysis.fit(published.select(np.arange(116) < 6))


@pytest.mark.parametrize(("column", "name"), [("tokens", "D"), ("n", "N")])
def test_two_values_do_not_hold_an_exponent(frame, column, name):
    if column == "n":
        frame[["n_once", "n_inject"]] = 0.0
        frame["n_rec"] = np.where(frame["d_model"] > 800, 2e8, 1e8)
    else:
        frame["tokens"] = np.where(frame["budget"] > 3e18, 2e10, 1e10)
    with pytest.raises(NotIdentifiedError, match=f"2 value\\(s\\) of {name}"):
        analysis.fit(frame)


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"phi": 3.5}, "phi 3.5: allowed is -3 to 3"), ({"starts": 0}, "starts 0: at least 1")],
)
def test_wrong_options(published, options, problem):
    with pytest.raises(AnalysisError, match=problem):
        analysis.fit(published, **options)


def test_a_parameter_at_its_bound_is_flagged(frame):
    law = joint_law(**{**TRUTH.params, "phi": 3.4})
    fit = analysis.fit(with_losses(frame, law), starts=FEW)
    assert fit.at_bounds == ("phi",)
    assert fit.params["phi"] == 3.0
    assert fit.warnings("joint law") == ["joint law: at the edge of the box: phi"]


def test_undetermined_parameters_are_flagged_with_the_condition(frame):
    noisy = with_losses(frame[frame["budget"] < 2e18], TRUTH, noise=0.03)
    (warning,) = analysis.fit(noisy, starts=FEW).weaknesses("joint law")
    assert warning.startswith("joint law: poorly determined: ")
    assert "(condition " in warning


def test_a_small_noisy_study_is_fitted_and_flagged():
    frame = pd.DataFrame(laptop_study.study(noise=0.15, seed=3))
    fit = analysis.fit(frame, starts=FEW)
    assert fit.converged
    assert fit.weaknesses("joint law")
