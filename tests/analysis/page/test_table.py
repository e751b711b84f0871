"""One table, five forms: the same cells, none of which can do anything where it is shown."""

import csv
import io

import numpy as np
import pandas as pd
import pytest

from analysis.page.numbers import compact, listed, scientific, shown, significant
from analysis.page.table import Column, Table, plain
from analysis.tables.estimate import Estimate

HOSTILE = "=1+1 <b> \x1b[31m $x$ \\frac{1}{2} a_b \udc80"


@pytest.fixture
def table():
    columns = (
        Column("run", "run"),
        Column("phi", "φ", ".2f"),
        Column("budget", "FLOPs", scientific),
        Column("note", "note"),
    )
    rows = [
        {"run": "a", "phi": Estimate(-0.5, 0.1, (-0.7, -0.3)), "budget": 3e18, "note": None},
        {"run": HOSTILE, "phi": Estimate(float("nan"), None, None), "budget": 1e-3, "note": "-1"},
    ]
    return Table("phis", "What it is worth.", columns, rows)


def test_text_is_aligned_numbers_right(table):
    caption, head, first, second = table.text().splitlines()
    assert caption == "What it is worth."
    assert head.index("φ") + 1 == first.index("-0.30]") + len("-0.30]")
    assert first.endswith("3×10¹⁸  –")
    assert "\x1b" not in second
    assert r"\x1b[31m" in second
    assert second.isprintable()


def test_html_is_escaped_and_has_a_true_minus(table):
    html = table.html()
    assert '<td class="n">−0.50 [−0.70, −0.30]</td>' in html
    assert '<td class="n">–</td>' in html
    assert "&lt;b&gt;" in html
    assert "<td>-1</td>" in html  # text stays as it was written
    html.encode()
    formula = Table("t", "A·N^−α", (Column("x", "x"),), [{"x": "counted in N_once"}]).html()
    assert "A·N<sup>−α</sup>" in formula
    assert "<td>counted in N<sub>once</sub></td>" in formula


def test_csv_has_full_precision_and_no_formula(table):
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert list(rows[0]) == ["run", "phi", "phi_low", "phi_high", "budget", "note"]
    assert [float(rows[0][key]) for key in ("phi", "phi_low", "budget")] == [-0.5, -0.7, 3e18]
    assert rows[1]["run"].startswith("'=1+1 <b> \\x1b[31m")
    assert rows[1]["note"] == "'-1"
    assert rows[1]["phi"] == ""


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_cell_of_text_begins_a_formula(start):
    text = Table("t", "", (Column("run", f"{start}title"),), [{"run": f"{start}cmd()"}]).csv()
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["run"].startswith("'")


def test_latex_is_ascii_and_escaped(table):
    text = table.latex()
    assert r"\begin{tabular}{lrrl}" in text
    assert r"a\_b" in text
    assert r"\$x\$ \textbackslash frac\{1\}\{2\}" in text
    assert r"3$\times$10$^{18}$" in text
    assert r"$-$0.50 [$-$0.70, $-$0.30]" in text
    assert text.startswith("% What it is worth.\n")
    text.encode("ascii")


def test_json_keeps_what_is_not_shown_and_nothing_that_json_lacks(table):
    rows = [row | {"hidden": np.array([1.0, np.nan])} for row in table.rows]
    (first, second) = plain({"rows": Table("t", "", table.columns, rows)})["rows"]
    assert first["phi"] == {"value": -0.5, "se": 0.1, "ci95": [-0.7, -0.3]}
    assert first["hidden"] == [1.0, None]
    assert second["phi"]["value"] is None


def test_a_table_without_rows_still_has_its_columns(table):
    empty = Table("none", "", table.columns, [])
    assert empty.text().split() == ["run", "φ", "FLOPs", "note"]
    assert pd.read_csv(io.StringIO(empty.csv())).columns.to_list() == [
        "run", "phi", "budget", "note",
    ]  # fmt: skip
    assert "FLOPs" in empty.latex()


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.12345, ".3f", "0.123"),
        (-2e-7, "+.3f", "-2.0e-07"),  # what would round to nothing
        (0.0, ".3f", "0.000"),
        (1234567, ",", "1,234,567"),
        (Estimate(2.0, None, None), ".1f", "2.0"),
        (Estimate(2.0, 1.0, (1.0, 3.0)), ".1f", "2.0 [1.0, 3.0]"),
        (None, ".1f", "–"),
        (float("nan"), significant(2), "–"),
        (39207.4, significant(3), "39,207"),
        (1.4e-8, significant(2), "1.4e-8"),
        (Estimate(0.5, None, (0.25, 1.0)), significant(2), "0.50 [0.25, 1.0]"),
    ],
)
def test_numbers_as_they_are_shown(value, form, text):
    assert shown(value, form) == text


@pytest.mark.parametrize(
    ("value", "text"), [(950, "950"), (1500, "1.5k"), (3e8, "300M"), (2e9, "2B"), (5e12, "5T")]
)
def test_compact(value, text):
    assert compact(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(4.64e17, "4.64×10¹⁷"), (1e18, "10¹⁸"), (3e11, "3×10¹¹"), (2e-3, "2×10⁻³")]
)
def test_scientific(value, text):
    assert scientific(value) == text


def test_long_lists_are_cut():
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcdef")) == "a, b, c and 3 more"
