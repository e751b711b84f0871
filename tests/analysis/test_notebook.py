"""The notebook runs from top to bottom, and what is committed of it is from such a run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "analysis" / "inspect_checkpoint.ipynb"

# Of the model that the notebook trains.
SMALLER = (
    "config.data.batch_size = 2; config.model.core_layers = 1; "
    "config.model.prelude_layers = config.model.coda_layers = 0"
)

# Runs a notebook in the current folder and writes it back with its outputs.
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
"""


def cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs(cell, kind):
    """Contents of one MIME type that a cell shows."""
    return [out["data"][kind] for out in cell["outputs"] if kind in out.get("data", {})]


def by_id(notebook):
    return {cell["id"]: cell for cell in cells(notebook)}


def check_outputs(notebook):
    """Every view is there, and nothing failed."""
    seen = by_id(notebook)
    for cell in seen.values():
        assert [
            out["output_type"] for out in cell["outputs"] if out["output_type"] == "error"
        ] == []
    for name in ("matrices", "loops", "passage"):
        assert len(outputs(seen[name], "image/png")) == 1, name
    assert len(outputs(seen["config"], "text/html")) == 2
    for name in ("samples", "own"):
        assert "".join(outputs(seen[name], "text/html")[0]).count("r = ") == 4, name


@pytest.fixture
def committed():
    return json.loads(NOTEBOOK.read_text())


def test_committed_outputs_are_of_one_run(committed):
    counts = [cell["execution_count"] for cell in cells(committed)]
    assert counts == list(range(1, len(counts) + 1))
    check_outputs(committed)
    text = json.dumps(committed)
    assert "/tmp/" not in text
    assert "/work/" not in text


def test_it_runs_from_top_to_bottom(committed, tmp_path):
    """In an empty folder, with a model trained for a moment, whose data is moved then."""
    text = json.dumps(committed)
    # Few steps more than the 100 of the warm-up, of two sequences each, and little to measure.
    for old, new in (
        ("TOKENS = 300_000", "TOKENS = 14_080"),
        ("config.budget.tokens", f"{SMALLER}\\n    config.budget.tokens"),
        ("max_windows = 256", "max_windows = 16"),
        ("max_windows=256", "max_windows=16"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    notebook = json.loads(text)
    by_id(notebook)["train"]["source"] += [
        "\nPath('inspected_data').rename('moved')", "\nDATA = 'moved'"
    ]  # fmt: skip
    path = tmp_path / "notebook.ipynb"
    path.write_text(json.dumps(notebook))
    own = {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")}
    environment = os.environ | own | {"JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    check_outputs(json.loads(path.read_text()))
    assert (tmp_path / "inspected_run" / "summary.json").exists()
