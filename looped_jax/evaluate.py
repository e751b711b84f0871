"""Measures trained runs; every suite adds its part to a run's summary.json.

    python -m looped_jax.evaluate --workdir=runs/one --suites=loss
    python -m looped_jax.evaluate --workdir=runs/study --suites=depth,convergence,exits
    python -m looped_jax.evaluate --workdir=runs/one --data=data/other --step=4000
    python -m looped_jax.evaluate --workdir=runs/one --suites=loss --exit=change:0.02
    python -m looped_jax.evaluate --workdir=runs/one --inspect
    python -m looped_jax.evaluate --workdir=runs/study --suites=depth --backend=local --workers=2
    python -m looped_jax.evaluate --workdir=runs/study --suites=depth --backend=slurm --slurm_gpus=1

A folder that holds run folders stands for all finished runs in it: one that cannot be measured
costs a line and exit status 1, and what was measured before with the same settings is skipped.
Results on other data or after another step get a summary of their own, in RUN/evaluations or where
--out says; --out also serves for run folders that cannot be written.

With --backend every run of a study is a process of its own: --workers of them at a time on this
machine, or a job each on a Slurm cluster. Typed again, what is missing is measured.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from absl import flags
from rich.console import Console

from launch import evaluations
from launch.slurm import resources
from looped_jax import cli, parallel, peers, processes
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.cpu_devices import use_cores
from looped_jax.errors import UserError
from looped_jax.evaluation.exits.policies import POLICIES
from looped_jax.evaluation.exits.suite import CARRIES
from looped_jax.evaluation.settings import EPSILONS, Settings
from looped_jax.evaluation.suites import SUITES
from looped_jax.evaluation.trained import Trained
from looped_jax.files import replacing, subfolder, write_json
from looped_jax.progress import Display
from looped_jax.reading import opening
from looped_jax.reading.opening import Choice
from looped_jax.reading.results import MEASURED, Results, Subject
from looped_jax.run_folder import RunFolder

T = TypeVar("T")

# The folder of a run that its inspection is written to.
INSPECTION = "inspect"
FAILED_STATUS = 1
# How long several processes wait for each other at the start.
CONNECT_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Opened(Trained):
    """A trained run and the summary that its measurements go to."""

    results: Results


def evaluate(
    workdir: Path,
    suites: list[str],
    display: Display,
    settings: Settings | None = None,
    choice: Choice | None = None,
    *,
    out: Path | None = None,
    again: bool = False,
) -> dict[str, Any]:
    """Runs the suites on a checkpoint of a finished run and updates a summary.

    Args:
      workdir: the run folder.
      suites: names in the order in which they run.
      display: where progress is shown.
      settings: None for the defaults.
      choice: data, devices and step; None for the run's own.
      out: the folder of the summary and tables; None for the run folder or one inside it.
      again: measure also what was measured before with the same settings.

    Returns:
      The results of the suites that ran, by name.

    Raises:
      UserError: an unknown suite, no finished run, or data with another tokenizer than it has.
    """
    _check_names(suites)
    settings = settings or Settings()
    processes.on_process_0(lambda: bool(RunFolder(workdir).read_summary()))
    with opened(workdir, display, settings, choice, out) as trained, _locked(trained.results):
        found, given = {}, settings.to_json()
        for name in suites:
            before = processes.on_process_0(functools.partial(trained.results.has, name, given))
            if before and not again:
                display.say(f"{workdir}: {name} was measured before")
                continue
            found[name] = SUITES[name].measure(trained)
            trained.results.add(name, found[name], given, display)
    return found


@contextlib.contextmanager
def opened(
    workdir: Path,
    display: Display,
    settings: Settings,
    choice: Choice | None = None,
    out: Path | None = None,
) -> Iterator[Opened]:
    """A checkpoint of a run, finished or not, with its mesh active in the block.

    Nothing is written, and nothing of the run folder is locked.

    Raises:
      UserError: no checkpoint there, or data that is missing, damaged or of another tokenizer.
    """
    folder, choice = RunFolder(workdir), choice or Choice()
    run = opening.read_config(folder)
    mesh = opening.mesh_for(run, folder, choice.mesh)
    run = opening.on_mesh(run, mesh)
    data = processes.everywhere(lambda: opening.held_out_data(folder, run, choice))
    with parallel.active(mesh):
        restored = opening.read_params(folder, run, mesh, choice.step)
        trained_on = restored.extra.get("data_digest")
        opening.check_trained_on(folder, data, trained_on)
        last = opening.final_step(folder) if folder.is_finished() else restored.step
        subject = Subject.of(trained_on, data, restored.step, last, mesh)
        destination = subject.folder(folder, out, last)
        yield Opened(
            run, restored.step, restored.state, data, mesh, folder, destination.path, display,
            settings, Results(folder, destination, subject, tuple(SUITES)),
        )  # fmt: skip


@contextlib.contextmanager
def _locked(results: Results) -> Iterator[None]:
    """Process 0 holds the folder that results go to."""
    with contextlib.ExitStack() as stack:
        processes.on_process_0(lambda: stack.enter_context(results.folder.lock()))
        yield


def inspect(
    workdir: Path,
    display: Display,
    console: Console,
    settings: Settings,
    choice: Choice | None = None,
    out: Path | None = None,
) -> Path:
    """Prints all views of a run; figures and numbers go to a folder `inspect`, which it returns.

    Raises:
      UserError: as `opened` does.
    """
    from looped_jax.inspection import figures, text, views  # take seconds, and suites need none

    with opened(workdir, display, settings, choice, out) as trained:
        inspection = views.inspect(trained)
        into = trained.out / INSPECTION
        if processes.is_first():
            subfolder(trained.out, INSPECTION)
            write_json(into / "inspection.json", text.numbers(inspection))
            for name, figure in figures.figures(inspection):
                with replacing(into / name) as file:
                    figure.savefig(file, format="png", dpi=150)
    if processes.is_first():
        text.show(inspection, console)
    return into


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
    opening.define_flags()
    flags.DEFINE_enum(
        "backend", None, ["local", "slurm"],
        "Measure every run in a process of its own; default: all in this one, one after another.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "workers", None,
        "local: runs at a time. Default: one for each core, or for each accelerator.",
    )  # fmt: skip
    resources.define_flags()
    flags.DEFINE_string(
        "out", None,
        "Folder for results, of several runs one inside it for each; default: the run folder, or "
        "one in its folder `evaluations` for other data or another step.",
    )  # fmt: skip
    flags.DEFINE_bool("again", False, "Measure also what was measured before.")
    flags.DEFINE_integer("processes", 1, "Processes that measure together, started as for train.")
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
    flags.DEFINE_string(
        "exit",
        "",
        "With the loss suite: score the text also with tokens that exit by this rule, such as "
        "change:0.02, change:0.02,every=2,first=2,most=32 or auto:0.005 (the cheapest one within "
        "so many nats of full depth, chosen by what the exits suite measured). Signals: "
        f"{', '.join(SIGNALS)}.",
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
        exit=values.exit,
        policies=tuple(values.policies),
        carries=tuple(values.carries),
        resamples=values.resamples,
        seed=values.seed,
    )


def main(_: list[str]) -> int:
    values = flags.FLAGS
    settings = settings_from_flags()
    _check_names(values.suites)
    if settings.exit and "loss" not in values.suites:
        raise UserError(f"--exit={settings.exit}; allowed: with the suite loss")
    suites = values.suites if values["suites"].present or not values.inspect else []
    if values.processes < 1:
        raise UserError(f"--processes={values.processes}; allowed: 1 or more")
    _refuse_options_of_another_backend()
    if values.backend is not None:
        return _measure_as_jobs(suites, settings)
    if values.processes == 1:
        use_cores()
    processes.connect(values.processes, CONNECT_SECONDS)
    with peers.watch(), peers.telling(agreed=(UserError,)):
        return _measure_all(suites, settings)


def _refuse_options_of_another_backend() -> None:
    given = flags.FLAGS
    of_backend = {"local": ("workers",), "slurm": resources.OPTIONS}
    for backend, names in of_backend.items():
        for name in names:
            if given[name].present and given.backend != backend:
                raise UserError(f"--{name}; allowed with --backend={backend}")
    if given.backend == "local" and given.processes > 1:
        raise UserError(f"--processes={given.processes}; allowed without --backend=local")


def _measure_as_jobs(suites: list[str], settings: Settings) -> int:
    """Measures what is missing of a study's runs, each in a process of its own."""
    given, root = flags.FLAGS, Path(flags.FLAGS.workdir)
    say = lambda text: print(text, flush=True)
    left = []
    folders = opening.run_folders(root)
    for folder in folders:
        out = None if given.out is None else Path(given.out) / folder.relative_to(root)
        if given.again or given.inspect or not _is_measured(out or folder, suites, settings):
            left.append(evaluations.Evaluation(folder, _arguments(folder, out)))
    if len(left) < len(folders):
        say(f"{len(folders) - len(left)} of {len(folders)} runs were measured before")
    if given.backend == "local":
        return evaluations.run_here(left, given.workers, say)
    return evaluations.submit(left, root, resources.resources_from_flags(), given.processes, say)


def _is_measured(folder: Path, suites: list[str], settings: Settings) -> bool:
    """Whether a summary has all suites with these settings, as far as it tells by itself."""
    given = flags.FLAGS
    if given.data is not None or given.step is not None or not RunFolder(folder).is_finished():
        return False
    measured = RunFolder(folder).read_summary().get(MEASURED, {})
    return all(measured.get(suite, {}).get("settings") == settings.to_json() for suite in suites)


def _arguments(folder: Path, out: Path | None) -> list[str]:
    """The flags of this call, for one of its runs."""
    given = flags.FLAGS
    of_jobs = {"workdir", "out", "backend", "workers", *resources.OPTIONS}
    kept = [
        given[name].serialize() for name in given if given[name].present and name not in of_jobs
    ]
    return [f"--workdir={folder}", *([f"--out={out}"] if out else []), *kept]


def _measure_all(suites: list[str], settings: Settings) -> int:
    """Measures the run, or all in the folder; returns the exit status."""
    values = flags.FLAGS
    root = Path(values.workdir)
    runs = opening.run_folders(root)
    failed = 0
    with Display(Console(stderr=True, quiet=not processes.is_first())) as display:
        for workdir in runs:
            out = None if values.out is None else Path(values.out) / workdir.relative_to(root)
            try:
                _measure(workdir, suites, settings, out, display)
            except UserError as error:
                if len(runs) == 1:
                    raise
                failed += 1
                display.say(f"{workdir}: {error}")
        if failed:
            display.say(f"{failed} of {len(runs)} runs were not measured")
    return FAILED_STATUS if failed else 0


def _measure(
    workdir: Path, suites: list[str], settings: Settings, out: Path | None, display: Display
) -> None:
    values, choice = flags.FLAGS, opening.choice_from_flags()
    console = Console(quiet=not processes.is_first())
    say = lambda what: console.print(what, markup=False, highlight=False, soft_wrap=True)
    if values.inspect:
        say(str(inspect(workdir, display, console, settings, choice, out)))
    if not suites:
        return
    results = evaluate(workdir, suites, display, settings, choice, out=out, again=values.again)
    for name, result in results.items():
        for part in SUITES[name].show(result):
            say(part)
    say(str((out or workdir) / "summary.json"))


if __name__ == "__main__":
    define_flags()
    cli.run(main)
