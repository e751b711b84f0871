"""Every command of the recipe: its options exist, its runs are planned for the devices it names."""

import os
import re
import runpy
import shlex
import subprocess
import sys

import pytest

from configs import isodepth
from launch import overrides
from launch.slurm.resources import Resources
from looped_jax import parallel
from looped_jax.config import resolve
from tests.launch.sweeps import ROOT

RECIPE = ROOT / "launch/recipes/published_scale.md"
SOURCES = {
    "looped_jax.data.prepare": ("looped_jax/data/prepare.py",),
    "looped_jax.train": ("looped_jax/train.py",),
    "looped_jax.evaluate": (
        "looped_jax/evaluate.py", "looped_jax/reading/opening.py", "launch/slurm/resources.py",
    ),
    "launch.sweep": ("launch/sweep.py", "launch/slurm/resources.py"),
}  # fmt: skip


def commands(module):
    """The arguments of every call of a module in the recipe."""
    text = "\n".join(re.findall(r"```bash\n(.*?)```", RECIPE.read_text(), re.S))
    lines = text.replace("\\\n", " ").splitlines()
    calls = [line.partition(f"python -m {module} ")[2].rstrip("'") for line in lines]
    return [shlex.split(call) for call in calls if call]


@pytest.mark.parametrize("module", SOURCES)
def test_options_exist(module):
    written = "\n".join((ROOT / path).read_text() for path in SOURCES[module])
    known = set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', written))
    assert commands(module)
    for arguments in commands(module):
        named = {argument.removeprefix("--").partition("=")[0] for argument in arguments}
        assert {name for name in named if not name.startswith("config")} <= known


def test_studies_are_planned():
    for arguments in commands("launch.sweep"):
        given = dict(a.removeprefix("--").split("=", 1) for a in arguments if "=" in a)
        changes = [a for a in arguments if a.startswith("--config.")]
        get_runs = runpy.run_path(str(ROOT / given["study"]))["get_runs"]
        for config in (get_runs()[0], get_runs()[-1]):
            overrides.apply(config, changes)
            run = resolve(config)
            asked = Resources(gpus=int(given["slurm_gpus"]), cpus=int(given["slurm_cpus"]))
            assert asked.layout(run.processes.count).nodes == run.processes.count
            check_batch(run, 8 * run.processes.count)


def test_the_run_on_a_pod_is_planned():
    (arguments,) = [a for a in commands("looped_jax.train") if "--plan" not in a]
    config = isodepth.get_config(arguments[0].partition(":")[2])
    config.mesh = next(a for a in arguments if "mesh" in a).partition("=")[2]
    check_batch(resolve(config), 64)


def check_batch(run, devices):
    """Every mesh names as many devices as there are, and the batch divides over them."""
    sizes = parallel.mesh_sizes(run.mesh)
    ways = sizes["fsdp"] * (devices // sizes["fsdp"] if sizes["data"] == -1 else sizes["data"])
    assert ways == devices
    assert run.data.batch_size % (ways * run.data.microbatches) == 0


@pytest.mark.slow
def test_the_study_is_shown(tmp_path):
    (arguments,) = [a for a in commands("launch.sweep") if "--share=0.4" in a]
    kept = [a for a in arguments if not a.startswith(("--out", "--data"))]
    done = subprocess.run(
        [sys.executable, "-m", "launch.sweep", *kept, f"--out={tmp_path}"],
        cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "116 of 116 runs to do, " in done.stdout
    assert "GPU-hours at 40% of 9.89e+14 FLOP/s a GPU" in done.stdout
    assert "#SBATCH --array=0-115%16" in done.stdout
