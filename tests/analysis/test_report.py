"""The report on a small study: what it says, what lies beside it, and what it refuses."""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.errors import NotIdentifiedError
from analysis.page.section import Section, Text
from analysis.report import make_report, scale
from analysis.scaling.isoflop import exponents, isoflop_curves
from analysis.scaling.readable import readable
from analysis.scaling.show import answer_sections as scaling_sections
from analysis.scaling.show import curve_sections
from analysis.scaling.study import Settings
from analysis.tables.estimate import Estimate
from analysis.tables.runs import load_runs
from tests.analysis import laptop_study
from tests.analysis.page.test_html import Outline

QUICK = Settings(starts=5, resamples=40)
HOSTILE = "r1 <b>&amp;"


def flatten(html: str) -> str:
    return re.sub(r"\s+", " ", Outline(html).text.replace("\xa0", " "))


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("study") / "quickstart <i>"
    runs = laptop_study.study(seed=5)
    runs[0]["run"] = HOSTILE
    laptop_study.write_run_folders(runs, root)
    broken = root / "lost <u>run"
    broken.mkdir()
    status = {"state": "diverged", "step": 120, "reason": "loss is nan <steps 100-120>"}
    (broken / "status.json").write_text(json.dumps(status))
    return root


@pytest.fixture(scope="module")
def written(runs_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    arguments = ["report", str(runs_folder), f"--out={out}", "--starts=5", "--bootstrap=20"]
    assert main(arguments) == 0
    return out


@pytest.fixture(scope="module")
def text(written):
    return flatten((written / "report.html").read_text())


@pytest.fixture(scope="module")
def scaling(runs_folder):
    return scale(load_runs(runs_folder), QUICK)


def test_it_opens_with_phi_and_its_interval_as_in_the_fit(written, text):
    fit = json.loads((written / "fit.json").read_text())
    low, high = fit["bootstrap"]["phi"]["ci95"]
    phi = f"φ = {fit['params']['phi']:.2f}"
    opening = f"{phi} 95 % interval {low:.2f} to {high:.2f}, by the joint law"
    assert fit["answer"]["law"] == "joint"
    assert opening in text
    assert text.index(opening) < text.index("Sizes relative to the r = 1 model")
    assert abs(fit["params"]["phi"] - laptop_study.TRUTH.phi) < 0.15


def test_every_part_is_there_in_order(text):
    titles = [
        "What one recurrence is worth",
        "Warnings",
        "Which law answers",
        "Iso-FLOP curves",
        "Compute-optimal allocation",
        "The price of looping",
        "The fit",
        "How sure is φ",
        "Runs",
        "How to run it again",
    ]
    body = text[text.index(titles[0]) :]
    places = [body.index(title) for title in titles]
    assert places == sorted(places)


def test_names_and_reasons_from_files_are_escaped(written, text):
    document = (written / "report.html").read_text()
    for raw in ("<i>", "<u>", "<steps"):
        assert raw not in document
    assert HOSTILE in text
    assert "lost <u>run" in text
    assert "diverged at step 120: loss is nan <steps 100-120>" in text


def test_figures_and_numbers_lie_beside_the_page(written):
    names = {path.stem for path in (written / "figures").iterdir()}
    assert names == {
        "phi",
        "isoflop",
        "isoflop_panels",
        "optimum",
        "tokens_per_parameter",
        "frontier",
        "frontier_gap",
        "predicted_actual",
        "residuals",
        "forest",
        "bootstrap",
    }
    assert len(list((written / "figures").iterdir())) == 3 * len(names)
    document = (written / "report.html").read_text()
    assert document.count("data:image/svg+xml;base64,") == 2 * len(names)  # page, phone
    beside = {path.name for path in written.iterdir()} - {"figures", "report.html"}
    assert beside == {"fit.json", "isoflop.json", "allocation.json", "runs.csv", "bootstrap.csv"}
    assert all(name in document for name in beside)


def test_the_numbers_beside_it_agree_with_each_other(written):
    allocation = json.loads((written / "allocation.json").read_text())
    gaps = {gap["r"]: gap for gap in allocation["gaps_at_budgets"]}
    optima = {o["r"]: o for o in allocation["at_budgets"]}
    for r, gap in gaps.items():
        difference = np.subtract(optima[r]["loss"], optima[1.0]["loss"])
        np.testing.assert_allclose(gap["gap"], difference, rtol=1e-12)
    isoflop = json.loads((written / "isoflop.json").read_text())
    refused = [curve for curve in isoflop["curves"] if curve["refused"]]
    assert all(curve["n_opt"] is None for curve in refused)
    assert len(isoflop["curves"]) == 12
    assert len(pd.read_csv(written / "runs.csv")) == 36


def test_it_says_how_to_run_it_again(written, runs_folder, text):
    fit = json.loads((written / "fit.json").read_text())
    assert f"python -m analysis report '{runs_folder}' --out={written} --starts=5" in text
    assert fit["provenance"]["sha256"] in text


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((0.4, 0.5), "adds capacity, but less than as many unshared layers would"),
        ((0.4, 1.2), "adds capacity; whether as much as unshared layers would, these runs cannot"),
        ((-0.2, 0.7), "worth less than unshared layers; whether it is worth anything, these runs"),
        ((-0.2, 1.3), "These runs cannot tell"),
        ((1.1, 1.3), "worth more than as many unshared blocks"),
        ((-0.5, -0.1), "costs capacity"),
    ],
)
def test_the_interval_in_words(scaling, ends, words):
    phi = Estimate(sum(ends) / 2, 0.1, ends)
    verdict = scaling_sections._verdict(scaling.study, phi)
    assert words in verdict
    assert "12 blocks of runs" in verdict
    assert ("point within it says little" in verdict) == (ends[1] - ends[0] > 0.5)


def test_resamples_at_the_edge_of_the_search_are_counted(scaling):
    at_edge = dataclasses.replace(scaling.study.bootstrap, at_bounds={"phi": 7})
    study = dataclasses.replace(scaling.study, bootstrap=at_edge)
    text = scaling_sections.answer(dataclasses.replace(scaling, study=study)).text()
    assert "7 of 40 resamples end at the edge of the search (−3.00 to 3.00)" in text


def test_without_resamples_there_is_no_verdict(scaling):
    answer = dataclasses.replace(scaling.study.answer, ci95=None)
    study = dataclasses.replace(scaling.study, bootstrap=None, answer=answer)
    text = scaling_sections.answer(dataclasses.replace(scaling, study=study)).text()
    assert "no interval, nothing was resampled" in text
    assert "Without an interval this is a point, not an answer." in text


def test_refused_curves_and_exponents_are_listed_with_reasons(tmp_path):
    runs = [run for run in laptop_study.study() if (run["r"], run["d_model"]) != (4, 16)]
    path = tmp_path / "runs.csv"
    pd.DataFrame(runs).to_csv(path, index=False)
    curves = isoflop_curves(load_runs(path).runs)
    listed = curve_sections.isoflop(curves).text()
    assert "10 of 12 curves have a usable vertex" in listed
    assert listed.count("2 model sizes; a parabola needs at least 3") == 2
    section = curve_sections.allocation(None, "no law", curves, exponents(curves))
    notes = [block.text for block in section.find(Text)]
    assert (
        notes[0]
        == "No exponent: r = 4: 1 budgets with a usable vertex; an exponent needs at least 3."
    )


def test_without_widths_the_report_says_what_is_missing(tmp_path):
    path = tmp_path / "runs.csv"
    pd.DataFrame(laptop_study.study()).drop(columns="d_model").to_csv(path, index=False)
    report = make_report(load_runs(path), Settings(starts=2, resamples=0))
    (section,) = [s for s in report.sections if s.anchor == "allocation"]
    assert "No minimum of the law: the allocation needs a column d_model" in section.text()
    assert "allocation.json" not in report.files
    assert any(
        "allocation: null" in warning
        for warning in json.loads(report.files["fit.json"])["warnings"]
    )


def test_sizes_by_r_are_left_out_where_there_are_none(scaling):
    titles = lambda sizes: [
        c.title for c in curve_sections.sizes_table((1, 2), None, sizes).columns
    ]
    assert titles([]) == ["r"]
    assert titles(scaling.allocation.sizes) == [
        "r", "unique parameters", "performs like a model with",
    ]  # fmt: skip


def test_sections_of_other_measurements_are_added_where_the_runs_hold_them(
    runs_folder, scaling, monkeypatch
):
    monkeypatch.setattr("analysis.report.scale", lambda *_, **__: scaling)
    runs = load_runs(runs_folder)
    seen = []

    def convergence(table):
        seen.append(table)
        return Section("Where each token settles", ["…"], "settling")

    report = make_report(runs, QUICK, measurements=(convergence, lambda table: None))
    titles = [section.title for section in report.sections]
    assert titles.index("Where each token settles") == titles.index("How sure is φ") + 1
    assert seen == [runs]


def test_runs_of_one_r_are_refused_unless_they_hold_something_else(runs_folder):
    table = load_runs(runs_folder, where="r == 4")
    with pytest.raises(NotIdentifiedError, match="φ is not identified"):
        make_report(table, QUICK)
    report = make_report(
        table, QUICK, measurements=(lambda _: Section("Convergence", [], "convergence"),)
    )
    assert [section.title for section in report.sections] == [
        "Convergence",
        "Scaling law",
        "Warnings",
        "How to run it again",
    ]
    assert "is left out: diverged at step 120" in report.sections[2].text()


def test_nothing_is_written_for_unusable_runs(runs_folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["report", str(runs_folder), f"--out={out}", "--where=r == 4"]) == 2
    assert "φ is not identified" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("warning", "words"),
    [
        (
            "per_architecture r = 2: null: 4 runs cannot determine 5 parameters",
            "The law fitted to r = 2 alone – not available: 4 runs cannot determine 5 parameters",
        ),
        ("halves: null: 3 budgets", "φ on halves of the budgets – not available: 3 budgets"),
        (
            "joint law: at the edge of the box: log_A, phi",
            "Joint law: at the edge of the range searched: A, φ",
        ),
    ],
)
def test_warnings_are_in_words(warning, words):
    assert readable(warning) == words
