"""The shell and YAML of the recipes, as far as they run without their platforms."""

import re
import signal
import subprocess
import time

import pytest

from launch.slurm import resources
from tests.launch.sweeps import ROOT

RECIPES = ROOT / "launch" / "recipes"
UNTIL_FINISHED = RECIPES / "until_finished.sh"


def start(workdir, body):
    return subprocess.Popen(
        [UNTIL_FINISHED, workdir, "bash", "-c", body, "child", workdir],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status"), [('touch "$1/summary.json"', 0), ("exit 2", 2), ("kill -9 $$", 137)]
)
def test_a_command_ends_as_it_did(tmp_path, body, status):
    process = start(tmp_path, body)
    process.communicate(timeout=60)
    assert process.returncode == status


def test_a_run_that_was_stopped_in_good_order_is_not_finished(tmp_path):
    body = """trap 'sleep 0.3; touch "$1/saved"; exit 0' TERM; touch "$1/ready"
              while true; do sleep 0.05; done"""
    process = start(tmp_path, body)
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 75
    assert errors.endswith("has no summary.json: stopped before its end, start it again\n")
    assert (tmp_path / "saved").exists()  # it had the time to


def test_a_summary_that_shows_late_is_waited_for(tmp_path):
    process = start(tmp_path, '(sleep 1.2; touch "$1/summary.json") >/dev/null 2>&1 &')
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_wrong_call_is_refused(tmp_path):
    done = subprocess.run([UNTIL_FINISHED, tmp_path], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_every_option_of_the_slurm_recipe_exists_and_is_explained():
    text = (RECIPES / "slurm.md").read_text()
    named = set(re.findall(r"--(slurm_\w+)", text))
    assert named == {*resources.OPTIONS, "slurm_job"}


def test_recipes_name_files_and_modules_that_exist():
    for recipe in RECIPES.glob("*.*"):
        text = recipe.read_text()
        for path in re.findall(r"(?<![\w/])launch/[\w/]+\.\w+", text):
            assert (ROOT / path).exists(), f"{recipe.name}: {path}"
        for module in re.findall(r"-m ((?:looped_jax|launch)[\w.]*)", text):
            assert (ROOT / f"{module.replace('.', '/')}.py").exists(), f"{recipe.name}: {module}"
        for link in re.findall(r"\]\(([\w./]+)\)", text):
            assert (recipe.parent / link).exists(), f"{recipe.name}: {link}"
