"""Measures a trained run; every suite adds its part to the run's summary.json.

python -m looped_jax.evaluate --workdir=runs/one --suites=loss
"""

from pathlib import Path
from typing import Any

from absl import flags

from looped_jax import cli, parallel
from looped_jax.config import resolve_json
from looped_jax.errors import UserError
from looped_jax.evaluation.suites import SUITES, Trained
from looped_jax.training import state as states
from looped_jax.training.checkpoints import restore_params
from looped_jax.training.progress import Display
from looped_jax.training.run_folder import RunFolder
from looped_jax.training.trainer import open_data


def evaluate(workdir: Path, suites: list[str], display: Display) -> dict[str, Any]:
    """Runs the suites on the newest checkpoint of a finished run and updates its summary.

    Returns:
      The suites' results by name.

    Raises:
      UserError: an unknown suite, no finished run, or data other than it was trained on.
    """
    if unknown := [name for name in suites if name not in SUITES]:
        raise UserError(f"suite {unknown[0]!r}; allowed: {', '.join(SUITES)}")
    folder = RunFolder(workdir)
    with folder.lock():
        summary = folder.read_summary()
        run = resolve_json(folder.read_config())
        data = open_data(run)
        if data.digest != summary["data_digest"]:
            raise UserError(
                f"data in {data.folder} has digest {data.digest[:12]}; allowed for {workdir}: "
                f"{summary['data_digest'][:12]}, the data it was trained on"
            )
        mesh = parallel.mesh_from_text(run.mesh)
        with parallel.active(mesh):
            abstract = states.abstract_params(run.model, mesh)
            params = restore_params(folder.checkpoints_path, abstract).state
            trained = Trained(run, params, data, mesh, folder, display)
            results = {}
            for name in suites:
                results[name] = SUITES[name](trained)
                summary = folder.read_summary() | _part(name, results[name])
                folder.write_summary(summary)
    return results


def _part(suite: str, result: dict[str, Any]) -> dict[str, Any]:
    """The loss stands at the top of the summary, every other suite under its name."""
    return result if suite == "loss" else {suite: result}


def define_flags() -> None:
    flags.DEFINE_string("workdir", None, "The run folder of a finished run.", required=True)
    flags.DEFINE_list("suites", ["loss"], f"Which measurements: {', '.join(SUITES)}.")


def main(_: list[str]) -> None:
    values = flags.FLAGS
    with Display() as display:
        results = evaluate(Path(values.workdir), values.suites, display)
    for name, result in results.items():
        for key, value in result.items():
            if isinstance(value, int | float):
                print(f"{name}.{key} = {value:.6g}")
    print(Path(values.workdir) / "summary.json")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
