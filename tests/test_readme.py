"""Every command of the README runs, and its worked example of a new variant works."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interchange import published_files

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
CODE = ("looped_jax", "analysis", "launch", "configs", "tests", "pyproject.toml")

# Commands tested elsewhere: what they start is this suite, or trains for minutes.
TESTED_ELSEWHERE = {
    "launch/quickstart.sh": "tests/launch/test_scripts.py",
    "launch/test.sh": "tests/launch/test_scripts.py",
}
# What makes a long command short: (what it contains, words to replace or "", words).
SHORTENED = (
    ("looped_jax.train --config=configs/quickstart.py", "",
     "--config.budget.flops=3e9 --config.evaluation.max_windows=16 --config.evaluation.batch_size=8"
     " --config.model.width=16 --config.model.prelude_layers=0 --config.model.core_layers=1"
     " --config.model.coda_layers=0"),
    ("--recurrences=1,4,8", "--recurrences=1,4,8", "--recurrences=1,4 --max_tokens=8"),
    ("launch.sweep", "", "--dry_run"),
    ("analysis fit analysis/data/schwethelm2026_isodepth.csv", "", "--bootstrap=20 --starts=20"),
    ("analysis reproduce", "", "--bootstrap=20 --starts=20"),
    ("analysis predict", "", "--bootstrap=20 --starts=20"),
    ("analysis allocate", "", "--bootstrap=20 --starts=20"),
)  # fmt: skip
# Commands on the runs of a study, which --dry_run does not make.
OF_A_STUDY = re.compile(r"runs/(quickstart|elastic|readout)\b")


def blocks(language: str, text: str = README) -> list[str]:
    """The fenced blocks in one language, of the README or another page."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands() -> list[str]:
    """Every line of the bash blocks, continued lines joined, without comments."""
    text = "\n".join(blocks("bash")).replace("\\\n", " ")
    lines = ((line, shlex.split(line, comments=True)) for line in text.splitlines())
    return [line if ">" in words else shlex.join(words) for line, words in lines if words]


def shortened(command: str) -> str:
    for contained, old, new in SHORTENED:
        if contained in command:
            command = command.replace(old, new) if old else f"{command} {new}"
    return command


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder to type the commands in: the code, and a checkpoint of a published project."""
    folder = link_code(tmp_path_factory.mktemp("readme"))
    (folder / "theirs").mkdir()
    published_files.isodepth(folder / "theirs" / "s20")
    return folder


def link_code(folder: Path) -> Path:
    for name in CODE:
        (folder / name).symlink_to(ROOT / name)
    return folder


def run_in(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
    }  # fmt: skip
    words = [sys.executable if word == "python" else word for word in words]
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def chains() -> dict[str, list[str]]:
    """The commands that can run here, parted so that none needs what another chain makes."""
    parted: dict[str, list[str]] = {"runs": [], "import": [], "analysis": []}
    for command in commands():
        if command.split()[0] in TESTED_ELSEWHERE:
            continue
        if OF_A_STUDY.search(command) and "--dry_run" not in shortened(command):
            continue
        of_import, of_analysis = "runs/theirs" in command, "-m analysis" in command
        parted["import" if of_import else "analysis" if of_analysis else "runs"].append(command)
    return parted


@pytest.mark.parametrize(("chain", "least"), [("runs", 8), ("import", 2), ("analysis", 2)])
def test_every_command_runs_in_order(folder, chain, least):
    for command in chains()[chain]:
        short = shortened(command)
        written_by_the_shell = ">" in shlex.split(short, comments=True)
        done = run_in(folder, ["bash", "-c", short] if written_by_the_shell else shlex.split(short))
        assert done.returncode == 0, f"{short}\n{done.stdout}\n{done.stderr}"
    assert len(chains()[chain]) >= least


@pytest.mark.slow
def test_every_command_on_a_study_runs_as_it_stands(tmp_path_factory):
    """Trains the studies of the README: an hour on two cores."""
    folder = link_code(tmp_path_factory.mktemp("studies"))
    prepare = next(c for c in commands() if "data.prepare" in c)
    for command in [prepare, *(c for c in commands() if OF_A_STUDY.search(c))]:
        words = [sys.executable if w == "python" else w for w in shlex.split(command)]
        subprocess.run(words, cwd=folder, check=True)


@pytest.mark.parametrize("script", TESTED_ELSEWHERE)
def test_the_scripts_of_the_readme_are_tested(script):
    assert script in commands()
    assert Path(script).name in (ROOT / TESTED_ELSEWHERE[script]).read_text("utf-8")


def test_the_python_example_runs(folder):
    (example,) = blocks("python")
    done = run_in(folder, [sys.executable, "-W", "error", "-c", example])
    assert done.returncode == 0, done.stderr
    assert "joint law, 116 runs: φ = 0.4576" in done.stdout
    assert (folder / "laws.png").stat().st_size > 1000


@pytest.mark.parametrize("variant", ["injection", "law", "signal"])
def test_the_worked_examples_add_a_variant_in_under_40_lines(variant, tmp_path):
    injection, law = blocks("diff")
    (signal,) = blocks("diff", (ROOT / "docs/adaptive.md").read_text("utf-8"))
    patch = {"injection": injection, "law": law, "signal": signal}[variant]
    assert patch.count("diff --git") <= 3  # at most two files beside the test
    added = [line for line in patch.splitlines() if re.match(r"\+(?!\+\+)", line)]
    assert len(added) < 40
    for name in CODE:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / name)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    (test,) = re.findall(r"^\+\+\+ b/(tests/\S+)", patch, re.MULTILINE)
    done = run_in(tmp_path, [sys.executable, "-m", "pytest", "-v", test])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
