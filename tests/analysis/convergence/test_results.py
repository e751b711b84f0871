"""What is read from depth and convergence measurements, said about them and drawn."""

import copy
import json

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.convergence import figures as convergence_figures
from analysis.convergence import results
from analysis.convergence import section as convergence_sections
from analysis.convergence.passage import heat_map, passage, settling_loops
from analysis.errors import AnalysisError
from analysis.tables.estimate import Estimate
from analysis.tables.measured import measured
from analysis.tables.runs import load_runs
from tests.analysis import elastic_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return elastic_study.write(tmp_path_factory.mktemp("study") / "elastic")


@pytest.fixture(scope="module")
def runs(folder):
    return load_runs(folder)


@pytest.fixture(scope="module")
def elastic(runs):
    return {run.run: run for run in measured(runs, "depth")}


@pytest.fixture(scope="module")
def models(runs):
    return measured(runs, "convergence")


def test_a_sampled_model_improves_up_to_its_mean_and_stays(elastic):
    model = elastic["sampled_mean4"]
    assert results.is_sampled(model)
    assert results.is_monotone_to_mean(model)
    assert results.improves_until(model) == 3
    assert results.nearest(model, 16) == (16, model["against_mean.difference"][15])
    words = convergence_sections.verdict(model)
    assert "loss falls with depth up to the mean; depth 3 is the last" in words
    assert "beyond the mean it stays flat (at most 0.0000 [-0.0002, 0.0002] nats, at" in words


def test_a_fixed_model_degrades_away_from_its_depth(elastic):
    words = convergence_sections.verdict(elastic["fixed_mean4"])
    assert "depth fixed at 4" in words
    assert "(at depth 1 by 0.400 [0.400, 0.400] nats)" in words
    assert "beyond the mean it degrades, at most by 0.4000" in words


def test_whether_the_useful_depth_is_the_mean(elastic):
    test = results.useful_depth_test(list(elastic.values()))
    assert test is not None
    assert test.runs == ["sampled_mean4", "sampled_mean8"]
    assert test.slope.value == pytest.approx(1)
    # Both logarithms have error 0.1 and lie log 2 apart.
    assert test.slope.se == pytest.approx(0.1 * np.sqrt(2) / np.log(2))
    assert test.holds
    assert "These models agree with a ratio and a slope of 1." in convergence_sections.hypothesis(
        test
    )
    assert results.useful_depth_test([elastic["fixed_mean4"]]) is None
    one = results.useful_depth_test([elastic["sampled_mean4"], elastic["fixed_mean4"]])
    assert one.slope is None
    assert "Slope" not in convergence_sections.hypothesis(one)


def test_a_useful_depth_far_from_the_mean_is_not_called_agreement(elastic):
    model = copy.deepcopy(elastic["sampled_mean4"])
    model["useful"]["over_training_mean"] = Estimate(0.5, None, (0.4, 0.6))
    test = results.useful_depth_test([model, elastic["sampled_mean8"]])
    assert not test.holds
    assert "do not agree" in convergence_sections.hypothesis(test)


def test_decades_per_loop_and_the_tail(models):
    for model in models:
        assert results.decades_per_loop(model) == pytest.approx(0.5, rel=1e-3)
    line = convergence_sections.decay(models[0], 0.01)
    assert "fixed_mean4: the median KL falls by 0.50 orders of magnitude a loop" in line
    assert "have not settled below 0.01 nats at the training mean (4)" in line


def test_thresholds(models):
    assert results.usual_epsilon(models) in elastic_study.EPSILONS
    assert results.settled(models[0], 0.01)["epsilon"] == 0.01
    with pytest.raises(AnalysisError, match=r"epsilon 0.02: .* was measured at 0.1, 0.01, 0.001"):
        results.settled(models[0], 0.02)


def test_settling_loops_of_a_passage_are_those_of_the_histogram(models):
    for model in models:
        text = passage(model, 0.01, tokens=10**6)
        counts = [(text.loops == loop).sum() for loop in model["loops"]]
        found = results.settled(model, 0.01)
        np.testing.assert_array_equal(counts, found["histogram"])
        assert (text.loops > model["recurrences"]).sum() == found["unsettled"]


def test_settling_is_for_good():
    kl = np.array([[9.0, 0.1, 9.0, 0.1], [0.1] * 4, [9.0] * 4, [9.0, 0.1, 0.1, 0.1]])
    np.testing.assert_array_equal(settling_loops(kl, 1.0), [5, 2, 6, 3])


def test_a_passage_starts_where_it_is_asked_to(models):
    text = passage(models[0], 0.01, start=3, tokens=4)
    assert text.texts == list(elastic_study.WORDS[3:7])
    with pytest.raises(AnalysisError, match="passage 1200: fixed_mean4 was measured on 1200 tok"):
        passage(models[0], 0.01, start=1200)


def test_the_heat_map_shows_every_token_once(models):
    text = passage(models[0], 0.01, tokens=60)
    figure = heat_map(text)
    drawn = figure.axes[0]
    assert len(drawn.patches) == 60
    shown = "".join(t.get_text() for t in drawn.texts).replace("\N{NO-BREAK SPACE}", " ")
    assert shown == "".join(text.texts).replace("\n", "↵")
    widths = [patch.get_x() + patch.get_width() for patch in drawn.patches]
    assert max(widths) <= drawn.get_xlim()[1]


def test_figures_show_what_was_measured(models, elastic):
    figure = convergence_figures.elasticity(list(elastic.values()))
    left, right = figure.axes
    for line, model in zip(left.lines, elastic.values(), strict=False):
        np.testing.assert_array_equal(line.get_xdata(), model["depths"])
        np.testing.assert_allclose(line.get_ydata(), [each.value for each in model["loss"]])
    assert right.get_xlabel() == "recurrences / training mean"
    figure = convergence_figures.kl_per_loop(models)
    for ax, model in zip(figure.axes, models, strict=True):
        median = [each.value for each in model["kl.median"]]
        assert any(np.allclose(line.get_ydata(), median) for line in ax.lines)
    figure = convergence_figures.settling(models, 0.01)
    first = figure.axes[0]
    heights = [bar.get_height() for bar in first.patches]
    assert sum(heights) == pytest.approx(1)
    assert len(figure.axes) == len(models) * len(elastic_study.TYPES)


def test_the_command_writes_numbers_and_figures(folder, tmp_path, capsys):
    arguments = ["convergence", str(folder), f"--out={tmp_path}", "--epsilon=0.01"]
    assert main([*arguments, "--where=run == 'fixed_mean4'"]) == 0
    written = json.loads((tmp_path / "convergence.json").read_text())
    assert [run["run"] for run in written["depth"]] == ["fixed_mean4"]
    assert written["epsilon"] == 0.01
    assert written["useful_depth_is_the_mean"] is None  # a fixed depth does not test it
    assert written["convergence"][0]["decades_per_loop"] == pytest.approx(0.5, rel=1e-3)
    assert written["provenance"]["command"].startswith("python -m analysis convergence")
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert names == {"elasticity", "kl_per_loop", "settling", "motion", "passage_fixed_mean4"}
    assert "orders of magnitude a loop" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon=0.5"], "epsilon 0.5: fixed_mean4 was measured at 0.1, 0.01, 0.001"),
        (["--passage=99999"], "passage 99999: fixed_mean4 was measured on 1200 tokens"),
    ],
)
def test_wrong_calls_write_nothing(arguments, message, folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["convergence", str(folder), f"--out={out}", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_runs_without_the_measurement(tmp_path, capsys):
    root = elastic_study.write(tmp_path / "study", models=((4, True),))
    path = root / "sampled_mean4" / "summary.json"
    summary = json.loads(path.read_text())
    part = summary.pop("convergence")
    path.write_text(json.dumps(summary))
    assert main(["convergence", str(root), f"--out={tmp_path / 'out'}"]) == 2
    assert "no run holds convergence: measure with python -m looped_jax.evaluate" in (
        capsys.readouterr().err
    )
    assert convergence_sections.settling(load_runs(root)) is None
    del part["kl"]
    path.write_text(json.dumps(summary | {"convergence": part}))
    assert convergence_sections.settling(load_runs(root)) is None
    assert main(["convergence", str(root), f"--out={tmp_path / 'out'}"]) == 2
    assert "(sampled_mean4: its convergence is left out: kl is missing" in capsys.readouterr().err
