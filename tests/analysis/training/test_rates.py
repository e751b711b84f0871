"""Loss against rate: cells, the reference's optimum, and what it costs elsewhere."""

import json

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.errors import InputError
from analysis.training.rates import reference, sweeps
from analysis.training.results import find_runs

W, T = 50, 16
RATES = (0.008, 0.014, 0.02)
BEST = {64: 0.014, 128: 0.02}  # the optimum of the wider model lies elsewhere


def write(root, width, rate, tokens=4096):
    folder = root / f"d{width}_{rate}"
    folder.mkdir()
    transfer = {"d_ref": 64, "tokens_ref": 4096.0}
    config = {
        "name": folder.name,
        "model": {"injection": "linear", "recurrences": 4, "width": width},
        "optimizer": {"rates": {"matrix": rate}, "transfer": transfer},
    }
    loss = 3 + 1000 * (rate - BEST[width]) ** 2
    nats_W = T * (loss + np.random.default_rng(0).normal(0, 1, W))
    np.save(folder / "validation_windows.npy", np.stack([nats_W, np.full(W, T)], axis=1))
    summary = {"run": folder.name, "loss": loss, "tokens": tokens, "flops_per_token": 1e6,
               "data_digest": "text"}  # fmt: skip
    for name, content in (("config", {"config": config}), ("summary", summary)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "metrics.jsonl").write_text('{"step": 1, "tokens": 512, "loss": 4.0}\n')


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("rates")
    for width in BEST:
        for rate in RATES:
            write(root, width, rate)
    return root


def test_the_regret_of_the_transferred_optimum(root):
    narrow, wide = sweeps(find_runs([root]))
    assert (narrow.cell.width, narrow.best, wide.best) == (64, 0.014, 0.02)
    assert reference(wide, [narrow, wide]) is narrow
    regret = wide.regret(narrow.best)
    assert regret.value == pytest.approx(1000 * 0.006**2)
    assert regret.ci95 == pytest.approx((regret.value, regret.value))  # the windows' noise cancels
    assert narrow.regret(narrow.best) == 0.0
    assert wide.regret(0.5) is None


def test_the_command_writes_what_it_says(root, tmp_path, capsys):
    assert main(["rates", str(root), f"--out={tmp_path}"]) == 0
    cells = json.loads((tmp_path / "rates.json").read_text())["cells"]
    assert [cell["transferred_rate"] for cell in cells] == [0.014, 0.014]
    assert "linear r = 4, width 128, " in capsys.readouterr().out
    assert (tmp_path / "figures" / "loss_by_rate.svg").exists()


def test_a_single_rate_is_no_sweep(root):
    with pytest.raises(InputError, match=r"no two finished runs that differ in optimizer\.rates"):
        sweeps(find_runs([root])[:1])
