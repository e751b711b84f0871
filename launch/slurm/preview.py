"""What `--dry_run --backend=slurm` shows: the script of one job of each kind, and what all ask for.

Nothing is submitted or written, and no Slurm needs to be here.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from launch.slurm.backend import ARRAY_SIZE, import_submitit, job_parameters, layout_of
from launch.slurm.plans import SUBMISSIONS
from launch.slurm.resources import Layout, Resources
from launch.study import PlannedRun, Study

COMMAND = "python -m submitit.core._submit FOLDER"  # what submitit starts in every process


def describe_jobs(
    study: Study, groups: Sequence[Sequence[PlannedRun]], out: Path, resources: Resources
) -> str:
    """For each layout of processes: arrays, jobs, nodes, GPUs, and the script that sbatch gets.

    Args:
      groups: runs of one job each.

    Raises:
      UserError: the resources do not fit a run, or submitit is missing.
    """
    jobs = Counter(layout_of(group[0], resources) for group in groups)
    return "\n\n".join(
        _describe(study, layout, count, out, resources) for layout, count in jobs.items()
    )


def _describe(study: Study, layout: Layout, jobs: int, out: Path, resources: Resources) -> str:
    arrays = -(-jobs // ARRAY_SIZE)
    asked = [
        f"{jobs} job{'s' if jobs > 1 else ''} in {arrays} array{'s' if arrays > 1 else ''}",
        f"up to {min(jobs, resources.at_once)} at a time",
        f"each {_nodes(layout, resources)}, "
        f"{layout.processes} process{'es' if layout.processes > 1 else ''}, "
        f"{'the time limit of the partition' if resources.time is None else resources.time}",
    ]
    return f"{'; '.join(asked)}:\n\n{_script(study, layout, jobs, out, resources)}"


def _nodes(layout: Layout, resources: Resources) -> str:
    nodes = f"{layout.nodes} node{'s' if layout.nodes > 1 else ''}"
    if not resources.gpus:
        return f"{nodes} × {layout.tasks_per_node * resources.cpus} CPU cores"
    return f"{nodes} × {resources.gpus} GPU{'s' if resources.gpus > 1 else ''}"


def _script(study: Study, layout: Layout, jobs: int, out: Path, resources: Resources) -> str:
    name = f"{study.name}-TIME-ID"
    folder = out.resolve() / SUBMISSIONS / name
    # What submitit's executor itself writes into the file that it submits.
    return (
        import_submitit()
        .slurm.slurm._make_sbatch_string(
            command=COMMAND.replace("FOLDER", str(folder)),
            folder=folder,
            map_count=jobs if jobs > 1 else None,
            **job_parameters(resources, layout, name, folder / "died_"),
        )
        .rstrip()
    )


def most_gpus(study: Study, resources: Resources) -> int:
    """GPUs of a job, on all its nodes; of the largest where runs differ; 1 where none is asked for.

    Raises:
      UserError: the resources do not fit a run.
    """
    return max(layout_of(run, resources).nodes for run in study.runs) * max(1, resources.gpus)
