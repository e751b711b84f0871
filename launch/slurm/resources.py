"""What a Slurm job asks for: options of the sweep, each with its meaning."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from absl import flags

from looped_jax.errors import UserError

OPTIONS = (
    "slurm_partition", "slurm_time", "slurm_nodes", "slurm_tasks", "slurm_cpus", "slurm_gpus",
    "slurm_at_once", "slurm_grace", "slurm_setup", "slurm_option",
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """The processes of a job: so many on each of so many nodes."""

    nodes: int
    tasks_per_node: int

    @property
    def processes(self) -> int:
        return self.nodes * self.tasks_per_node


@dataclass(frozen=True)
class Resources:
    """What each job of a sweep asks Slurm for; `define_flags` says what the fields mean."""

    partition: str | None = None
    time: str | None = None
    nodes: int | None = None
    tasks: int = 1
    cpus: int = 1
    gpus: int = 0
    at_once: int = 100
    grace: int = 120
    setup: Sequence[str] = ()
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        least = {"nodes": 1, "tasks": 1, "cpus": 1, "gpus": 0, "at_once": 1, "grace": 10}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise UserError(f"--slurm_{name}={value}; allowed: at least {bound}")
        for option in self.options:
            if not option.partition("=")[0] or option.startswith("-"):
                raise UserError(f"--slurm_option={option}; allowed: name=value, without dashes")

    @property
    def extra(self) -> Mapping[str, str | bool]:
        """More options of sbatch by name; one without a value is True."""
        split = [option.partition("=") for option in self.options]
        return {name: value if equals else True for name, equals, value in split}

    def layout(self, processes: int) -> Layout:
        """Where the processes of a run go.

        Args:
          processes: how many its config asks for.

        Raises:
          UserError: they do not divide over the nodes, or JAX would leave GPUs idle.
        """
        nodes = self.nodes or math.ceil(processes / self.tasks)
        layout = Layout(nodes, processes // nodes)
        if layout.processes != processes or layout.tasks_per_node > self.tasks:
            raise UserError(
                f"processes.count = {processes} with --slurm_tasks={self.tasks} on {nodes} "
                f"node{'s' if nodes > 1 else ''}; allowed: as many on each node, and up to "
                f"{self.tasks}"
            )
        if processes > 1 and self.gpus and layout.tasks_per_node not in (1, self.gpus):
            raise UserError(
                f"--slurm_gpus={self.gpus} with {layout.tasks_per_node} processes on a node; "
                "allowed: one process for each GPU, or one for all of a node"
            )
        return layout


def define_flags() -> None:
    """The options that become those of sbatch."""
    flags.DEFINE_string("slurm_partition", None, "Partition. Default: the cluster's.")
    flags.DEFINE_string(
        "slurm_time", None,
        "Time limit of a job, as Slurm writes it: minutes, HH:MM:SS, D-HH:MM:SS. A run that needs "
        "longer is requeued and goes on. Default: the partition's.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "slurm_nodes", None,
        "Nodes of a job, which share its processes (processes.count of the config) evenly. "
        "Default: as few as hold them.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "slurm_tasks", 1,
        "Most processes on a node. Of several with GPUs: as many as --slurm_gpus (each takes one), "
        "or 1 (it takes all).",
    )  # fmt: skip
    flags.DEFINE_integer("slurm_cpus", 1, "CPU cores of a process.")
    flags.DEFINE_integer("slurm_gpus", 0, "GPUs of a node.")
    flags.DEFINE_integer("slurm_at_once", 100, "Most jobs of an array that run at one time.")
    flags.DEFINE_integer(
        "slurm_grace", 120,
        "Seconds before the time limit at which a job is told to save a checkpoint and requeue; "
        "a step and a checkpoint have to fit in.",
    )  # fmt: skip
    flags.DEFINE_multi_string(
        "slurm_setup", [],
        "A shell line to run in a job before its processes start, such as `module load cuda`; "
        "can be given many times.",
    )  # fmt: skip
    flags.DEFINE_multi_string(
        "slurm_option", [],
        "Another option of sbatch as name=value, such as account=looped, qos=high, mem=64G; "
        "can be given many times.",
    )  # fmt: skip


def resources_from_flags() -> Resources:
    """Raises UserError for what cannot be."""
    given = flags.FLAGS
    return Resources(
        partition=given.slurm_partition,
        time=given.slurm_time,
        nodes=given.slurm_nodes,
        tasks=given.slurm_tasks,
        cpus=given.slurm_cpus,
        gpus=given.slurm_gpus,
        at_once=given.slurm_at_once,
        grace=given.slurm_grace,
        setup=given.slurm_setup,
        options=given.slurm_option,
    )
