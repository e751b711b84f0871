"""The published grid, shrunk by overrides, through a real Slurm: trained, measured, reported."""

import subprocess
import sys

from tests.launch.sweeps import ROOT, Sweeps, folders, states, wait_until

STUDY = ROOT / "tests/launch/slurm_isodepth_study.py"
SHRUNK = [
    f"--config.{item}"
    for item in (
        "model.width=16", "model.head_dim=8", "model.vocab_size=300", "model.vocab_multiple=8",
        "model.max_length=16", "model.compute_dtype=float32", "model.remat=none",
        "data.sequence_length=16", "data.batch_size=8", "budget.flops=0.0", "budget.steps=2",
        "evaluation.batch_size=8", "evaluation.max_windows=8", "mesh=data:1,fsdp:1,tensor:1",
    )
]  # fmt: skip
RUNS = ["isoflops_4.64e17_r4_s6", "isoflops_4.64e17_r4_s8"]


def measured(out):
    return [f for f in folders(out).values() if "depth" in f.read_summary().get("measured", {})]


def test_the_grid_is_trained_measured_and_reported(slurm, data, environment, tmp_path):
    out, env = tmp_path / "isodepth", environment | {"SLURM_CONF": slurm}
    status, output, errors = Sweeps(data, env).run(
        out, STUDY, *SHRUNK, "--backend=slurm", "--slurm_job=shape", "--wait"
    )
    assert (status, errors) == (0, ""), output
    assert states(out) == dict.fromkeys(RUNS, "finished")

    call = [sys.executable, "-m", "looped_jax.evaluate", f"--workdir={out}", "--suites=depth",
            "--depths=1,4", "--resamples=5", "--backend=slurm"]  # fmt: skip
    first = subprocess.run(call, cwd=ROOT, env=env, capture_output=True, text=True)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("2 runs submitted, 0 in the queue")
    wait_until(lambda: len(measured(out)) == 2, "the measurement of both runs")

    report = subprocess.run(
        [sys.executable, "-m", "analysis", "report", str(out), f"--out={tmp_path / 'report'}"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert report.returncode == 0, report.stderr
    page = (tmp_path / "report" / "report.html").read_text()
    assert all(name in page for name in RUNS)
