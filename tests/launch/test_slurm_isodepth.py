"""The published grid, shrunk by overrides, through a real Slurm: trained, measured, read."""

import shutil
import subprocess
import sys

import pytest

from tests.launch.sweeps import ROOT, Sweeps, folders, states, wait_until

STUDY = ROOT / "configs/studies/isodepth.py:r=4"
SHRUNK = [
    f"--config.{item}"
    for item in (
        "model.width=16", "model.head_dim=8", "model.vocab_size=300", "model.vocab_multiple=8",
        "model.max_length=16", "model.compute_dtype=float32", "model.remat=none",
        "data.sequence_length=16", "data.batch_size=8", "budget.flops=0.0", "budget.steps=2",
        "evaluation.batch_size=8", "evaluation.max_windows=8", "mesh=data:1,fsdp:1,tensor:1",
    )
]  # fmt: skip


def measured(out):
    return [f for f in folders(out).values() if "depth" in f.read_summary().get("measured", {})]


@pytest.mark.slow
def test_the_grid_is_trained_and_measured(slurm, data, environment, tmp_path):
    out, env = tmp_path / "isodepth", environment | {"SLURM_CONF": slurm}
    sweeps = Sweeps(data, env)
    status, output, errors = sweeps.run(
        out, STUDY, *SHRUNK, "--backend=slurm", "--slurm_job=shape", "--wait"
    )
    assert (status, errors) == (0, ""), output
    assert list(states(out).values()) == ["finished"] * 29

    some = tmp_path / "some"
    for folder in list(folders(out).values())[:3]:
        shutil.copytree(folder.path, some / "runs" / folder.path.name)
    call = [sys.executable, "-m", "looped_jax.evaluate", f"--workdir={some}", "--suites=depth",
            "--depths=1,4", "--resamples=5", "--backend=slurm"]  # fmt: skip
    evaluate = lambda: subprocess.run(call, cwd=ROOT, env=env, capture_output=True, text=True)
    first, again = evaluate(), evaluate()
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("3 runs submitted, 0 in the queue")
    assert again.stdout.splitlines()[-1].startswith("0 runs submitted, ")
    wait_until(lambda: len(measured(some)) == 3, "the measurement of all runs")
    assert evaluate().stdout.startswith("3 of 3 runs were measured before\n")

    runs = subprocess.run(
        [sys.executable, "-m", "analysis", "runs", str(out), f"--out={tmp_path / 'analysis'}"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert runs.returncode == 0, runs.stderr
    assert runs.stdout.count("isoflops_") >= 29
