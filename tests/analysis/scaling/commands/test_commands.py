"""isoflop, allocate and compare write their numbers and figures, or one line and nothing."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis import Runs
from analysis.__main__ import main
from analysis.scaling.allocation import allocate
from analysis.scaling.show.curve_json import allocation_json
from analysis.tables.files import dumps
from analysis.tables.provenance import provenance
from analysis.tables.runs import load_runs
from tests.analysis import laptop_study


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "study.csv"
    pd.DataFrame(laptop_study.study(noise=0.003)).to_csv(path, index=False)
    return path


def read(path) -> dict:
    return json.loads(path.read_text())


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_isoflop(csv, tmp_path, capsys):
    assert main(["isoflop", str(csv), f"--out={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    document = json.loads((tmp_path / "isoflop.json").read_text())
    assert len(document["curves"]) == 12
    (first,) = [e for e in document["exponents"] if e["r"] == 1]
    low, high = first["n_params"]["ci95"]
    assert f"{first['n_params']['exponent']:.3f} [{low:.3f}, {high:.3f}]" in printed
    np.testing.assert_allclose(
        first["sum"], first["n_params"]["exponent"] + first["tokens"]["exponent"]
    )
    assert names(tmp_path / "figures") == {
        f"{name}.{kind}" for name in ("isoflop", "isoflop_panels") for kind in ("png", "pdf", "svg")
    }


def test_allocate(csv, tmp_path, capsys):
    arguments = ["allocate", str(csv), f"--out={tmp_path}", "--starts=5", "--bootstrap=30"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    document = json.loads((tmp_path / "allocation.json").read_text())
    (size,) = [s for s in document["sizes"] if s["r"] == 4]
    low, high = size["effective"]["ci95"]
    assert f"{size['effective']['value']:.2f} [{low:.2f}, {high:.2f}]" in printed
    assert len(names(tmp_path / "figures")) == 12


def test_allocate_at_budgets_that_were_not_run(csv, tmp_path, capsys):
    arguments = ["allocate", str(csv), f"--out={tmp_path}", "--starts=5", "--bootstrap=30"]
    assert main([*arguments, "--budget=1e14"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(" 10¹⁴")]
    assert len(rows) == 4
    assert all(" beyond " in row for row in rows)
    (optima,) = {tuple(o["budgets"]) for o in read(tmp_path / "allocation.json")["at_budgets"]}
    assert optima == (1e14,)


@pytest.mark.parametrize("law", ["joint", "local"])
def test_predict(csv, tmp_path, capsys, law):
    d = 32
    shape = laptop_study.shape(4, d)
    once = shape["n_once"] + shape["n_inject"]
    model = {"n_once": once, "n_rec": shape["n_rec"], "r": 4, "tokens": 1e6}
    options = [f"--{name}={value}" for name, value in model.items()]
    quick = ["--starts=5", "--bootstrap=30"]
    arguments = ["predict", str(csv), f"--out={tmp_path}", f"--law={law}", *quick]
    assert main([*arguments, *options]) == 0
    printed = capsys.readouterr().out
    document = read(tmp_path / "prediction.json")
    low, high = document["loss"]["ci95"]
    truth = float(laptop_study.TRUTH.predict(Runs.from_counts(*model.values())))
    assert low - 0.003 < truth < high + 0.003
    assert high - low < 0.03
    assert f"loss {document['loss']['value']:.4f} [{low:.4f}, {high:.4f}] nats" in printed
    assert "xtrapolated" not in printed
    assert main([*arguments, *options[:-1], "--tokens=1e9"]) == 0
    assert "xtrapolated: D = 1e+09 is a factor" in capsys.readouterr().out
    assert document["law"] == law


def test_allocation_without_resamples_has_values_without_intervals(csv):
    table = load_runs(csv)
    result = allocate(table, laptop_study.TRUTH, None)
    document = json.loads(dumps(allocation_json(result, provenance(table, seed=0, command=None))))
    assert document["gaps"][0]["gap"][0] > 0
    assert document["gaps"][0]["ci95"] is None
    assert document["growth"][0]["n_params"]["se"] is None
    assert document["sizes"][0]["effective"]["ci95"] is None


def test_compare(csv, tmp_path, capsys):
    variant = tmp_path / "variant.csv"
    pd.DataFrame(laptop_study.study(noise=0.003, seed=9)).to_csv(variant, index=False)
    arguments = [f"--out={tmp_path}", "--starts=5", "--bootstrap=30"]
    assert main(["compare", str(csv), str(variant), *arguments]) == 0
    printed = capsys.readouterr().out
    document = json.loads((tmp_path / "comparison.json").read_text())
    low, high = document["delta_phi"]["ci95"]
    assert ("these runs cannot tell" in printed) == (low <= 0 <= high)
    assert f"{document['delta_phi']['value']:.3f}" in printed
    assert document["provenance"]["variant"]["input"] == str(variant)
    assert printed.count("the r = 1 runs of the baseline stand for both") == 9
    assert names(tmp_path / "figures") == {"comparison.png", "comparison.pdf", "comparison.svg"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["allocate", "CSV", "--where=d_model in (16, 24)"], "r = 1: 2 distinct d_model"),
        (["allocate", "CSV", "--where=r == 2"], "φ is not identified"),
        (["compare", "CSV", "CSV", "--bootstrap=1"], "at least 2 resamples"),
        (["compare", "CSV", "missing.csv"], "missing.csv: no such file or folder"),
        (["isoflop", "missing.csv"], "missing.csv: no such file or folder"),
        (
            ["predict", "CSV", "--n_once=0.1", "--n_rec=1", "--r=0.5", "--tokens=1"],
            "r 0.5: at least 1",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(csv, tmp_path, capsys, arguments, message):
    out = tmp_path / "out"
    filled = [str(csv) if argument == "CSV" else argument for argument in arguments]
    assert main([*filled, f"--out={out}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()
