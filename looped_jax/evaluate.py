"""Measures trained runs; every suite adds its part to a run's summary.json.

    python -m looped_jax.evaluate --workdir=runs/one --suites=loss
    python -m looped_jax.evaluate --workdir=runs/study --suites=depth,convergence,exits
    python -m looped_jax.evaluate --workdir=runs/one --inspect

A folder that holds run folders stands for all finished runs in it.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from absl import flags
from rich.console import Console

from looped_jax import cli, parallel
from looped_jax.config import RunConfig, resolve_json
from looped_jax.cpu_devices import mesh_of_run, use_cores
from looped_jax.errors import UserError
from looped_jax.evaluation.exits.policies import POLICIES
from looped_jax.evaluation.exits.running import CARRIES
from looped_jax.evaluation.settings import EPSILONS, Settings
from looped_jax.evaluation.suites import SUITES
from looped_jax.evaluation.trained import Trained
from looped_jax.files import replacing, subfolder, write_json
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder
from looped_jax.training import state as states
from looped_jax.training.checkpoints import restore_params
from looped_jax.training.trainer import open_data

T = TypeVar("T")

# The folder of a run that its inspection is written to.
INSPECTION = "inspect"


def evaluate(
    workdir: Path,
    suites: list[str],
    display: Display,
    settings: Settings | None = None,
    data_folder: str | None = None,
) -> dict[str, Any]:
    """Runs the suites on the newest checkpoint of a finished run and updates its summary.

    Args:
      workdir: the run folder.
      suites: names in the order in which they run.
      display: where progress is shown.
      settings: None for the defaults.
      data_folder: where the run's data lies now; None for where its config says.

    Returns:
      The suites' results by name.

    Raises:
      UserError: an unknown suite, no finished run, or data other than it was trained on.
    """
    _check_names(suites)
    folder, results = RunFolder(workdir), {}
    with folder.lock():
        folder.read_summary()  # which an unfinished run does not have
        with opened(workdir, display, settings or Settings(), data_folder) as trained:
            for name in suites:
                results[name] = SUITES[name].measure(trained)
                summary = folder.read_summary() | _part(name, results[name])
                folder.write_summary(summary)
    return results


@contextlib.contextmanager
def opened(
    workdir: Path, display: Display, settings: Settings, data_folder: str | None = None
) -> Iterator[Trained]:
    """The newest checkpoint of a run, finished or not, its mesh active in the block.

    Raises:
      UserError: no checkpoint, or data other than it was trained on.
    """
    folder = RunFolder(workdir)
    run = with_data(resolve_json(folder.read_config()), data_folder)
    data = open_data(run)
    mesh = mesh_of_run(run, folder.started_on())
    with parallel.active(mesh):
        abstract = states.abstract_params(run.model, mesh)
        restored = restore_params(folder.checkpoints_path, abstract)
        trained_on = restored.extra.get("data_digest")
        if trained_on is None and folder.is_finished():  # imported; None if it is from elsewhere
            trained_on = folder.read_summary()["data_digest"]
        if trained_on is not None and data.digest != trained_on:
            raise UserError(
                f"data in {data.folder} has digest {data.digest[:12]}; allowed for {workdir}: "
                f"{trained_on[:12]}, the data it was trained on"
            )
        yield Trained(run, restored.step, restored.state, data, mesh, folder, display, settings)


def inspect(
    workdir: Path,
    display: Display,
    console: Console,
    settings: Settings,
    data_folder: str | None = None,
) -> Path:
    """Prints all views of a run; figures and numbers go to its folder `inspect`, which it returns.

    Raises:
      UserError: as `opened` does.
    """
    from looped_jax.inspection import figures, text, views  # take seconds, and suites need none

    with opened(workdir, display, settings, data_folder) as trained:
        out = subfolder(trained.folder.path, INSPECTION)
        inspection = views.inspect(trained)
        write_json(out / "inspection.json", text.numbers(inspection))
        for name, figure in figures.figures(inspection):
            with replacing(out / name) as file:
                figure.savefig(file, format="png", dpi=150)
    text.show(inspection, console)
    return out


def with_data(run: RunConfig, folder: str | None) -> RunConfig:
    """The run with its data in another folder, if one is given.

    Raises:
      UserError: it has none and none is given.
    """
    if folder is not None:
        return dataclasses.replace(run, data=dataclasses.replace(run.data, folder=folder))
    if not run.data.folder:
        raise UserError(f"run {run.name} has no data of its own: give --data=DIR")
    return run


def _part(suite: str, result: dict[str, Any]) -> dict[str, Any]:
    """The loss stands at the top of the summary, every other suite under its name."""
    return result if suite == "loss" else {suite: result}


def finished_runs(workdir: Path) -> Iterator[Path]:
    """The run folder itself, or every finished one inside a folder, by name.

    Raises:
      UserError: there is none.
    """
    if RunFolder(workdir).config_path.exists():
        yield workdir
        return
    inside = sorted(path.parent for path in workdir.rglob("summary.json"))
    if not inside:
        raise UserError(f"{workdir} is no run folder and holds no finished run")
    yield from inside


def _check_names(suites: list[str]) -> None:
    if unknown := [name for name in suites if name not in SUITES]:
        raise UserError(f"suite {unknown[0]!r}; allowed: {', '.join(SUITES)}")


def _numbers(flag: str, texts: list[str], kind: Callable[[str], T]) -> tuple[T, ...]:
    try:
        return tuple(kind(text) for text in texts)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(f"--{flag}={','.join(texts)}; allowed: {what} with commas") from None


def define_flags() -> None:
    default = Settings()
    flags.DEFINE_string(
        "workdir", None, "The folder of a run, or one that holds finished runs.", required=True
    )
    flags.DEFINE_string("data", None, "Where the run's data lies now; default: as its config says.")
    flags.DEFINE_bool(
        "inspect", False, "Show what is inside, in text and figures; suites only if they are named."
    )
    flags.DEFINE_list("suites", ["loss"], f"Which measurements: {', '.join(SUITES)}.")
    flags.DEFINE_integer(
        "max_windows",
        default.max_windows,
        "Held-out windows that every suite but loss scores; 0: as many as the config says.",
    )
    flags.DEFINE_list(
        "depths",
        [],
        "Depths of the depth suite. Default: every one up to twice the mean training depth, then "
        "a quarter of the mean apart up to four times.",
    )
    flags.DEFINE_integer(
        "recurrences",
        None,
        "Loops that convergence, exits and readout run. Default: twice the mean training depth.",
    )
    flags.DEFINE_list(
        "epsilons",
        [f"{epsilon:g}" for epsilon in EPSILONS],
        "Thresholds on KL(p_i || p_(i-1)) in nats, at which tokens count as settled and exit.",
    )
    flags.DEFINE_list("policies", [], f"Exit policies; default all: {', '.join(POLICIES)}.")
    flags.DEFINE_list(
        "carries", [], f"What exited tokens show to others; default all: {', '.join(CARRIES)}."
    )
    flags.DEFINE_integer("resamples", default.resamples, "Of the bootstrap.")
    flags.DEFINE_integer("seed", default.seed, "Of the bootstrap.")


def settings_from_flags() -> Settings:
    """The Settings that the command line asks for; UserError for what is not allowed."""
    values = flags.FLAGS
    if values.recurrences is not None and values.recurrences < 1:
        raise UserError(f"--recurrences={values.recurrences}; allowed: 1 or more")
    return Settings(
        max_windows=values.max_windows,
        depths=_numbers("depths", values.depths, int),
        recurrences=values.recurrences or 0,
        epsilons=_numbers("epsilons", values.epsilons, float),
        policies=tuple(values.policies),
        carries=tuple(values.carries),
        resamples=values.resamples,
        seed=values.seed,
    )


def main(_: list[str]) -> None:
    values = flags.FLAGS
    settings = settings_from_flags()
    _check_names(values.suites)
    suites = values.suites if values["suites"].present or not values.inspect else []
    console = Console()
    use_cores()
    with Display() as display:
        for workdir in finished_runs(Path(values.workdir)):
            if values.inspect:
                print(inspect(workdir, display, console, settings, values.data), flush=True)
            if not suites:
                continue
            results = evaluate(workdir, suites, display, settings, values.data)
            for name, result in results.items():
                for part in SUITES[name].show(result):
                    console.print(part, markup=False, highlight=False, soft_wrap=True)
            print(workdir / "summary.json", flush=True)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
