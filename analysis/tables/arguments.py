"""Command-line arguments that several sub-commands share."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.laws.counting import INJECTIONS
from analysis.tables.columns import COLUMNS, OTHERS
from analysis.tables.files import refuse_unwritable
from analysis.tables.runs import RunTable, load_runs

Arguments = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True)
class Command:
    """``python -m analysis NAME``: the groups of arguments it takes, and what it does."""

    name: str
    run: Callable[[argparse.Namespace], None]
    groups: Sequence[Arguments]
    help: str
    description: str

    def add_parser(self, subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        """Register it."""
        parser = subparsers.add_parser(self.name, help=self.help, description=self.description)
        for add in self.groups:
            add(parser)
        parser.set_defaults(run=self.run)


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """RUNS and how to read it; see :func:`read_table`."""
    parser.add_argument(
        "runs", type=Path, metavar="RUNS", help="folder of run folders, at any depth, or a CSV"
    )
    parser.add_argument(
        "--injection",
        choices=INJECTIONS,
        default="once",
        help="count the injection matrix under N_once, under N_rec, or not at all (default: once)",
    )
    parser.add_argument(
        "--where",
        metavar="EXPR",
        help="condition on the columns: 'r in (1, 4) and budget < 3e18'; columns, numbers, "
        "strings, comparisons, in, and, or, not",
    )
    parser.add_argument(
        "--columns",
        type=_columns,
        default={},
        metavar="OURS=THEIRS,…",
        help="columns that have other names in RUNS, such as n_rec=params,tokens=seen",
    )
    parser.add_argument(
        "--group", choices=("min",), help="keep the lowest loss of runs with equal (r, N, D)"
    )


def read_table(args: argparse.Namespace) -> RunTable:
    """The table that the arguments of :func:`add_table_arguments` ask for.

    An output folder that cannot be written is refused here, before any work is done.
    """
    refuse_unwritable(args.out)
    return load_runs(
        args.runs,
        injection=args.injection,
        where=args.where,
        group=args.group,
        columns=args.columns,
    )


def warn(table: RunTable) -> None:
    """What is wrong with a table, and what was left out of it, on standard error."""
    for line in [
        *table.warnings,
        *(f"{run.run} is left out: {run.reason}" for run in table.dropped),
    ]:
        print(f"warning: {line}", file=sys.stderr)


def add_seed_argument(parser: argparse.ArgumentParser) -> None:
    """``--seed``, of the random starts and resamples."""
    parser.add_argument("--seed", type=non_negative, default=0, metavar="N", help="default: 0")


def at_least(least: int) -> Callable[[str], int]:
    """A whole number of at least this."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


positive, non_negative = at_least(1), at_least(0)


def _columns(text: str) -> dict[str, str]:
    """{"n_rec": "params"} from n_rec=params."""
    pairs: list[list[str]] = [pair.split("=", 1) for pair in text.split(",")]
    for pair in pairs:
        if len(pair) != 2 or pair[0] not in (*COLUMNS, *OTHERS) or not pair[1]:
            allowed = f"OURS=THEIRS with OURS of {', '.join((*COLUMNS, *OTHERS))}"
            raise argparse.ArgumentTypeError(f"{'='.join(pair)!r}: allowed is {allowed}")
    return dict(pairs)
