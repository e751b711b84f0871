"""The numbers of docs/results are those that the commands there make of the tables beside them."""

import json
import re
from pathlib import Path

import pytest

from analysis.__main__ import main

FOLDER = Path(__file__).parents[1] / "docs" / "results"
NUMBER = r"(-?[\d.]+)"
ROWS = re.findall(
    rf"\(([\w.]+\.csv)\) \| {NUMBER} \| {NUMBER} to {NUMBER} \| {NUMBER} \| {NUMBER} \|",
    (FOLDER / "README.md").read_text("utf-8"),
)


def test_every_table_has_a_row():
    assert sorted(row[0] for row in ROWS) == sorted(path.name for path in FOLDER.glob("*.csv"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_table_gives_the_numbers_of_its_row(row, tmp_path):
    """With fewer starts than the command takes, and no resamples: they are of other numbers."""
    name, *written = row
    command = ["fit", str(FOLDER / name), f"--out={tmp_path}"]
    assert main([*command, "--starts=20", "--bootstrap=0"]) == 0
    found = json.loads((tmp_path / "fit.json").read_bytes())
    assert (found["n_runs"], found["dropped"]) == (36, [])
    answer = found["answer"]
    assert answer["law"] == "local"
    of_phi = [f"{number:.3f}" for number in (answer["phi"], *answer["ci95"])]
    of_errors = [f"{answer['left_out_rmse'][law]:.4f}" for law in ("local", "joint")]
    assert [*of_phi, *of_errors] == written
