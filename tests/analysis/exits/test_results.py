"""What is read from exit measurements, said about them and drawn; and the report with all parts."""

import json
from operator import itemgetter

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.exits import figures as exits_figures
from analysis.exits import results
from analysis.exits import section as exits_sections
from analysis.exits.section import exits_section, in_words
from analysis.tables.measured import measured
from analysis.tables.runs import load_runs
from tests.analysis import elastic_study
from tests.analysis.page.test_html import Outline


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("study") / "elastic"
    return elastic_study.write(root, models=((4, False),))


@pytest.fixture(scope="module")
def models(folder):
    return measured(load_runs(folder), "exits")


def test_points_by_policy_and_carry(models):
    model = models[0]
    assert results.carries(model) == ["carry", "full_depth"]
    assert results.shown_carry(model) == "carry"
    assert results.policies(model) == ["uniform", "kl", "change", "oracle_kl"]
    frontier = results.frontier(model, "kl", "carry")
    assert [point["mean_loops"].value for point in frontier] == [2, 3, 4, 5, 6, 7, 8]
    table = exits_sections.point_table(model)
    assert table.rows[table.rows.index({**frontier[0], "test_share": 300_000 / 800_000})]
    assert np.isnan(frontier[-1]["against_uniform_at_equal_flops"].value)


def test_verdicts_count_what_lies_beyond_its_interval(models):
    counts = lambda policy, cost: itemgetter("better", "worse", "compared")(
        results.against_uniform(models[0], policy, "carry", cost)
    )
    assert counts("kl", "loops") == (7, 0, 7)
    assert counts("kl", "flops") == (0, 6, 6)
    best = results.against_uniform(models[0], "kl", "carry", "flops")["best"]
    assert best["difference"].value == pytest.approx(0.03)
    assert counts("uniform", "loops")[:2] == (0, 0)


def test_words_say_what_the_test_costs_and_what_is_gained(models):
    text = " ".join(in_words(models[0]))
    assert "one KL test (coda and head) costs 150,000 forward FLOPs a token, 0.75 times" in text


def test_a_table_says_what_is_gained_over_uniform_depth(models):
    rows = [list(row.values()) for row in exits_sections.verdict_table(models).rows]
    assert ["fixed_mean4", "kl", "7 of 7", "0 of 7", "0 of 6", "6 of 6"] in rows
    assert not any("oracle" in row[1] for row in rows)


def test_what_was_not_reached_is_a_dash(models):
    (line,) = [
        line
        for line in exits_sections.quality_table(models).text().splitlines()
        if "oracle_kl" in line
    ]
    assert line.split()[-2:] == ["–", "0%"]


def test_figures_show_every_point_and_the_bounds_only_against_loops(models):
    left, right = exits_figures.frontier(models[0]).axes
    drawn = [container.lines[0] for container in left.containers]
    assert len(drawn) == 4
    assert len(right.containers) == 3
    uniform = results.frontier(models[0], "uniform", "carry")
    np.testing.assert_allclose(
        drawn[0].get_ydata(orig=False), [point["against_full_depth"].value for point in uniform]
    )
    axes = exits_figures.carries(models[0], ["kl", "change"]).axes
    assert [ax.get_title(loc="left") for ax in axes] == ["kl", "change"]
    assert all(len(ax.containers) == 2 for ax in axes)


def test_the_command_writes_numbers_and_figures(folder, tmp_path, capsys):
    assert main(["exits", str(folder), f"--out={tmp_path}"]) == 0
    written = json.loads((tmp_path / "exits.json").read_text())
    first = written["runs"][0]
    assert first["run"] == "fixed_mean4"
    assert first["test_over_loop"]["kl"] == pytest.approx(0.75)
    row = next(
        row
        for row in first["against_uniform"]
        if (row["policy"], row["carry"], row["equal"]) == ("change", "carry", "flops")
    )
    assert (row["better"], row["worse"], row["compared"]) == (6, 0, 6)
    oracle = [row for row in first["at_equal_quality"] if row["policy"] == "oracle_kl"]
    assert all(row["loops_over_uniform"] is None for row in oracle)
    assert len(list((tmp_path / "figures").glob("*.png"))) == 2
    assert "one KL test" in capsys.readouterr().out


def test_the_report_holds_all_three_sections(folder, tmp_path):
    assert main(["report", str(folder), f"--out={tmp_path}", "--bootstrap=10"]) == 0
    text = Outline((tmp_path / "report.html").read_text()).text
    titles = ["One model at every depth", "Where each token settles", "Stopping tokens early"]
    places = [text.rindex(title) for title in titles]  # the headings, not the contents
    assert places == sorted(places)
    assert "Scaling law" in text


def test_there_is_no_section_without_the_measurement(published):
    assert exits_section(published) is None
