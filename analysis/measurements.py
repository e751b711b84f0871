"""What evaluation has measured besides the loss: its sections of the report, and their commands."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.convergence.section import elastic_depth, settling
from analysis.exits.section import exits_section
from analysis.page.output import add_output_arguments, deliver
from analysis.page.section import Section
from analysis.readout.section import readout_section
from analysis.tables.arguments import (
    Command,
    add_table_arguments,
    non_negative,
    read_table,
    warn,
)
from analysis.tables.measured import require_measured
from analysis.tables.provenance import provenance
from analysis.training.section import training

SCHEMA = 1


@dataclass(frozen=True)
class Measurement:
    """Sections about what a suite has measured, and the command that makes them alone.

    Attributes:
        suite: of looped_jax.evaluate, which names the command and its JSON file too.
        sections: each makes a section of a table of runs and of the command's own ``options``, or
            None where these do not hold its data.
        empty: what JSON holds where a section is not there.
    """

    suite: str
    help: str
    description: str
    sections: Sequence[Callable[..., Section | None]]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    empty: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> Command:
        groups = (add_table_arguments, add_output_arguments, self._add_options)
        return Command(self.suite, self._run, groups, self.help, self.description)

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        for name, options in self.options.items():
            parser.add_argument(f"--{name}", **options)

    def _run(self, args: argparse.Namespace) -> None:
        """Read, compare, draw, write, print."""
        table = read_table(args)
        warn(table)
        require_measured(table, self.suite)
        *others, last = self.sections
        options = {name: getattr(args, name) for name in self.options}
        made = [*(make(table) for make in others), last(table, **options)]
        document: dict[str, Any] = {"schema": SCHEMA, **self.empty}
        for section in made:
            document |= {} if section is None else section.json()
        document["provenance"] = provenance(table, seed=0, command=args.command).to_json()
        deliver(made, args, f"{self.suite}.json", document)


MEASUREMENTS = (
    Measurement(
        "convergence",
        help="loss at every depth, and the loop at which each token settles",
        description="Compare what looped_jax.evaluate --suites=depth,convergence measured on RUNS. "
        "Writes convergence.json and the figures elasticity, kl_per_loop, settling, motion and "
        "passage_RUN (SVG, PDF, PNG) to the output folder.",
        sections=(elastic_depth, settling),
        options={
            "epsilon": {
                "type": float,
                "metavar": "NATS",
                "help": "threshold at which a token counts as settled, one of those measured "
                "(default: the one that tells tokens apart best)",
            },
            "passage": {
                "type": non_negative,
                "default": 0,
                "metavar": "N",
                "help": "first token of the passage that is shown (default: 0)",
            },
        },
        empty={"depth": [], "useful_depth_is_the_mean": None},
    ),
    Measurement(
        "exits",
        help="exit policies: quality against loops and against compute",
        description="Compare the exit policies that looped_jax.evaluate --suites=exits measured on "
        "RUNS. Writes exits.json and the figures frontier_RUN and carries_RUN (SVG, PDF, PNG) to "
        "the output folder.",
        sections=(exits_section,),
    ),
    Measurement(
        "readout",
        help="scale of the state, radial gradients, quality against speed",
        description="Compare what looped_jax.evaluate --suites=readout measured on RUNS, seeds "
        "together, beside the published numbers. Writes readout.json and the figures norm_growth, "
        "radial_fraction, readout_frontier, angular_step and clamps (SVG, PDF, PNG) to the output "
        "folder.",
        sections=(readout_section,),
    ),
)

#: The report's sections: each makes one of a table of runs, or None where these lack its data.
SECTIONS = (training, *(make for each in MEASUREMENTS for make in each.sections))
