"""What is read from readout measurements, concluded from them and drawn."""

import json

import numpy as np
import pytest
from scipy import stats

from analysis.__main__ import main
from analysis.page.section import PageFigure, Text
from analysis.page.table import Table
from analysis.readout import figures as readout_figures
from analysis.readout import section as readout_sections
from analysis.readout.claims import claims, decide, pick
from analysis.readout.results import (
    Condition,
    OverSeeds,
    group,
    over_seeds,
    ratio,
    shapes,
)
from analysis.tables.estimate import Estimate
from analysis.tables.measured import measured
from analysis.tables.runs import load_runs
from tests.analysis import readout_study
from tests.analysis.readout_study import K, R


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return readout_study.write(tmp_path_factory.mktemp("study") / "readout")


@pytest.fixture(scope="module")
def groups(folder):
    return group(measured(load_runs(folder), "readout"))


def by_text(found):
    return {each.text: each for each in found}


def test_seeds_of_a_condition_stand_together(groups):
    assert [len(each.runs) for each in groups] == [3] * 5
    assert groups[0].label == "every loop, RMSNorm"
    assert [each.label for each in groups] == [
        "every loop, RMSNorm",
        "every loop, raw",
        "last loop, RMSNorm",
        "every loop, RMSNorm + penalty 0.01",
        "every loop, RMSNorm + norm between loops",
    ]
    assert [run["seed"] for run in groups[0].runs] == [0, 1, 2]
    weighted = Condition("every", "last", 0.0, "none", (0.1, 0.9), "linear")
    assert weighted.label == (
        "every loop, RMSNorm at the last loop, weights 0.1:0.9, linear injection"
    )


def test_intervals_over_seeds():
    each = lambda value: Estimate(value, 0.1, (value - 0.2, value + 0.2))
    found = over_seeds([each(1.0), each(2.0), each(4.0)])
    half = stats.t.ppf(0.975, 2) * np.std([1, 2, 4], ddof=1) / np.sqrt(3)
    assert found.value == pytest.approx(7 / 3)
    assert found.ci95 == pytest.approx((7 / 3 - half, 7 / 3 + half))
    scale = over_seeds([each(1.0), each(2.0), each(4.0)], log=True)
    assert scale.value == pytest.approx(2)
    assert scale.ci95[0] * scale.ci95[1] == pytest.approx(4)
    alone = over_seeds([each(3.0)])
    assert (alone.ci95, alone.seeds) == ((2.8, 3.2), 1)


def test_ratios():
    a, b = OverSeeds((8.0, 16.0), 128**0.5, None), OverSeeds((1.0, 2.0), 2**0.5, None)
    found = ratio(a, b)
    assert found.value == pytest.approx(8)
    # Welch on two pairs with equal spread: Student's t with 2 degrees of freedom.
    half = stats.t.ppf(0.975, 2) * np.sqrt(2 * np.var(np.log([1, 2]), ddof=1) / 2)
    assert np.log(found.ci95) == pytest.approx((np.log(8) - half, np.log(8) + half))
    one = ratio(OverSeeds((9.0,), 9.0, (8.0, 10.0)), OverSeeds((3.0,), 3.0, (2.0, 4.0)))
    assert one.ci95 == (2.0, 5.0)
    assert ratio(OverSeeds((9.0,), 9.0, None), b).ci95 is None


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((2.0, 3.0), "holds"),
        ((0.0, 0.9), "does not hold"),
        ((4.1, 9.0), "does not hold"),
        ((0.5, 2.0), "undecided"),
        (None, "undecided"),
        ((np.nan, 2.0), "undecided"),
    ],
)
def test_verdicts(interval, verdict):
    assert decide(interval, 1.0, 4.0) == verdict


def test_the_claims_on_known_truth(groups):
    found = by_text(claims(groups))
    expected = {
        "Loss at every loop behind RMSNorm drives the norm into the tens of thousands": "holds",
        "… above that with the raw readout": "holds",
        "The raw readout keeps the norm in the tens": "holds",
        "Behind RMSNorm the gradient of a loop's loss has no part along its state": "holds",
        "Behind a raw readout it has": "holds",
        "The perplexity of the normalised baseline hardly changes with the loops": "holds",
        "The angular step falls as 1 / s": "holds",
        "Controlled scale is better at the same depth: raw readout": "holds",
    }
    for text, verdict in expected.items():
        assert found[text].verdict == verdict, found[text]
    factor = found["… above that with the raw readout"].here
    assert factor.value == pytest.approx(1000, rel=1e-6)
    assert found["The angular step falls as 1 / s"].here.value == pytest.approx(-1.01)


def test_the_verdicts_follow_the_numbers(folder, tmp_path):
    """Runs whose norms do not drift, and see their scale nowhere, get other verdicts."""
    root = readout_study.write(tmp_path / "other")
    for path in root.rglob("summary.json"):
        run = json.loads(path.read_text())
        norm = run["readout"]["norm"]
        norm["mean"] = readout_study.rows(np.full(R + 1, 150.0 + run["readout"]["seed"]))
        run["readout"]["perplexity"] = readout_study.rows(np.linspace(40, 20, R))
        immediate = readout_study.rows(np.full(R, 1e-4 * (1 + 0.1 * run["readout"]["seed"])))
        run["readout"]["radial_fraction"]["immediate"]["mean"] = immediate
        path.write_text(json.dumps(run))
    found = by_text(claims(group(measured(load_runs(root), "readout"))))
    verdicts = {text: each.verdict for text, each in found.items()}
    assert verdicts["… above that with the raw readout"] == "undecided"
    assert verdicts["The raw readout keeps the norm in the tens"] == "does not hold"
    assert verdicts["Behind a raw readout it has"] == "does not hold"
    first = "Loss at every loop behind RMSNorm drives the norm into the tens of thousands"
    assert verdicts[first] == "does not hold"
    invariance = "The perplexity of the normalised baseline hardly changes with the loops"
    assert verdicts[invariance] == "does not hold"


def test_what_was_not_run_is_not_measured(tmp_path):
    root = readout_study.write(tmp_path / "study", names=("drift", "terminal"), seeds=(0,))
    few = group(measured(load_runs(root), "readout"))
    found = by_text(claims(few))
    assert found["The raw readout keeps the norm in the tens"].verdict == "not measured"
    first = found["Loss at every loop behind RMSNorm drives the norm into the tens of thousands"]
    assert first.verdict == "holds"
    assert first.here.seeds == 1
    (row,) = readout_sections.claims_table([first]).json()
    assert row["seeds"] == 1
    assert pick(few, readout_norm="none") is None


def test_shapes_are_not_mixed(folder, tmp_path):
    root = readout_study.write(tmp_path / "two", names=("drift", "raw"), seeds=(0, 1))
    readout_study.write(root, names=("drift",), seeds=(0,), width=128)
    runs = load_runs(root)
    of_shapes = shapes(group(measured(runs, "readout")))
    assert [[len(each.runs) for each in groups] for groups in of_shapes] == [[2, 2], [1]]
    section = readout_sections.readout_section(runs)
    headings = [block.text for block in section.find(Text)]
    assert headings == ["Width 64, 4 loops", "Width 128, 4 loops"]
    for kind, count in ((PageFigure, 10), (Table, 6)):
        names = [item.name for item in section.find(kind)]
        assert len(set(names)) == len(names) == count


def test_the_section_says_what_was_measured(folder):
    section = readout_sections.readout_section(load_runs(folder))
    assert section.anchor == "readout"
    for text in ("39,207 / 56,051", "17 to 83", "  holds  ", "3 seeds a condition"):
        assert text in section.text()
    assert "the norm is largest with every loop, RMSNorm (" in section.text()
    (loops,) = [table for table in section.find(Table) if table.name == "readout_loops"]
    assert len(loops.rows) == 5 * R


def test_figures_show_what_was_measured(groups):
    left, _ = readout_figures.norm_growth(groups).axes
    assert left.get_yscale() == "log"
    for line, each in zip(left.lines, groups, strict=False):
        values = [[e.value for e in run["norm.mean"]] for run in each.runs]
        np.testing.assert_allclose(line.get_ydata(), np.exp(np.mean(np.log(values), 0)))
    speed, flops = readout_figures.frontier(groups).axes
    np.testing.assert_allclose(speed.lines[0].get_xdata(), 1e5 / np.arange(1, R + 1))
    assert flops.get_xlabel() == "forward FLOPs per token"
    _, probe = readout_figures.angular_step(groups).axes
    x, y = probe.lines[0].get_data()
    np.testing.assert_allclose(y / x, 3)
    immediate, objective = readout_figures.radial_fraction(groups).axes
    assert len(immediate.lines[0].get_xdata()) == R
    assert len(objective.lines[0].get_xdata()) == K
    rescaled, _ = readout_figures.clamps(groups).axes
    assert rescaled.lines[0].get_ydata()[0] == 0


def test_the_command_writes_numbers_and_figures(folder, tmp_path, capsys):
    assert main(["readout", str(folder), f"--out={tmp_path}"]) == 0
    written = json.loads((tmp_path / "readout.json").read_text())
    (one,) = written["shapes"]
    assert (one["width"], one["trained_loops"], one["loops"]) == (64, 4, 8)
    assert [len(each["frontier"]) for each in one["conditions"]] == [8] * 5
    assert one["conditions"][0]["seeds"] == [0, 1, 2]
    assert {each["verdict"] for each in one["claims"]} >= {"holds"}
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert names == {
        "norm_growth", "radial_fraction", "readout_frontier", "angular_step", "clamps",
    }  # fmt: skip
    out = capsys.readouterr().out
    (line,) = [each for each in out.splitlines() if each.startswith("The raw readout keeps")]
    assert line.split("  ")[0] == "The raw readout keeps the norm in the tens (final norm)"
    assert " holds " in line


def test_the_report_has_the_section(folder, tmp_path):
    assert main(["report", str(folder), f"--out={tmp_path}", "--bootstrap=10"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert '<section id="readout"><h2>What the loss cannot see</h2>' in page
    assert (tmp_path / "figures" / "norm_growth.png").exists()


def test_runs_without_the_measurement(tmp_path, capsys):
    root = readout_study.write(tmp_path / "study", names=("drift",), seeds=(0,))
    (path,) = root.rglob("summary.json")
    summary = json.loads(path.read_text())
    part = summary.pop("readout")
    path.write_text(json.dumps(summary))
    assert main(["readout", str(root), f"--out={tmp_path / 'out'}"]) == 2
    assert "no run holds readout: measure with python -m looped_jax.evaluate" in (
        capsys.readouterr().err
    )
    assert readout_sections.readout_section(load_runs(root)) is None
    del part["norm"]
    path.write_text(json.dumps(summary | {"readout": part}))
    assert readout_sections.readout_section(load_runs(root)) is None
    assert main(["readout", str(root), f"--out={tmp_path / 'out'}"]) == 2
    assert "its readout is left out: norm is missing; measure again" in capsys.readouterr().err
