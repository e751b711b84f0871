"""Data, study, fit and report in one go; launch/quickstart.sh calls this in its environment.

Typed again, it goes on where it was. Paths are relative to the project's folder.
"""

import json
import shlex
from pathlib import Path

import jax
from absl import flags
from rich.console import Console

from analysis.__main__ import main as analysis
from launch.study import load_study
from launch.sweep import UNFINISHED_STATUS, run_study
from looped_jax import cli
from looped_jax.data.prepare import prepare

AGAIN = "launch/quickstart.sh"
# As launch/test.sh ends.
HOW_PYTHON_IS_RUN = "for python as in the README, once in every new shell: . .venv/bin/activate"
DATA = "data/novels_512"
VOCAB_SIZE = 512


def main(_: list[str]) -> int:
    given = flags.FLAGS
    jax.config.update("jax_platforms", "cpu")  # accelerators are for the workers
    console, out = Console(), Path(given.out)
    study = load_study(Path(given.study), out)  # a mistake in there shows before any work

    _step(
        "looped_jax.data.prepare", "--source=bundled", f"--out={DATA}", f"--vocab_size={VOCAB_SIZE}"
    )
    prepare("bundled", DATA, vocab_size=VOCAB_SIZE, say=lambda line: print(line, flush=True))

    _step("launch.sweep", f"--study={given.study}", f"--out={out}")
    unfinished = run_study(study, out, given.workers, console, AGAIN)
    if unfinished not in (0, UNFINISHED_STATUS):
        return unfinished

    # Runs that did not finish are named in the report; the rest may still support a fit.
    report = [str(out), f"--out={out / 'analysis'}"]
    _step("analysis", "report", *report)
    status = analysis(["report", *report])
    if status:
        return status
    print(f"\n{describe_fit(out / 'analysis' / 'fit.json')}")
    print(f"report: {out / 'analysis' / 'report.html'}")
    print(f"\n{HOW_PYTHON_IS_RUN}")
    return unfinished


def describe_fit(path: Path) -> str:
    """What the runs say of φ, and how far that goes, from fit.json."""
    fit = json.loads(path.read_text())
    if fit["answer"] is None:
        return f"no answer: {'; '.join(fit['warnings'])}"
    return f"{fit['answer']['sentence']}\nWhy this law: {fit['answer']['why']}."


def _step(module: str, *arguments: str) -> None:
    print(f"\n$ python -m {shlex.join([module, *arguments])}", flush=True)


def define_flags() -> None:
    flags.DEFINE_string("study", "configs/studies/quickstart.py", "The study to run.")
    flags.DEFINE_string("out", "runs/quickstart", "Folder of its runs and report.")
    flags.DEFINE_integer("workers", None, "Runs at a time. Default: one for each core.")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
