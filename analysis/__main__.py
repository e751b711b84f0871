"""The command line: ``python -m analysis COMMAND …``; ``--help`` after any command explains it."""

import argparse
import errno
import io
import os
import shlex
import sys
from collections.abc import Sequence

from analysis import report
from analysis.errors import AnalysisError
from analysis.measurements import MEASUREMENTS
from analysis.scaling.commands import allocate, compare, fit, isoflop, predict, reproduce
from analysis.training import command as runs
from analysis.training import rates

COMMANDS = (
    *(module.COMMAND for module in (fit, isoflop, allocate, predict, compare, runs, rates)),
    *(measurement.command for measurement in MEASUREMENTS),
    report.COMMAND,
    reproduce.COMMAND,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 when what was asked for was written, 2 for a wrong call or unusable input.

    1 on a full disk, 130 when interrupted, 141 when the reader of the output has gone; what was
    written until then is whole.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="python -m analysis", description="Scaling laws and measurements of looped models."
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    args = parser.parse_args(argv)
    args.command = shlex.join(["python", "-m", "analysis", *argv])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without φ, a name beyond UTF-8
            stream.reconfigure(errors="backslashreplace")
    try:
        args.run(args)
        sys.stdout.flush()
    except AnalysisError as error:
        print(f"python -m analysis: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the interpreter's end would complain of what is left to print
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" {error.filename}" if error.filename else ""
        print(f"python -m analysis: cannot write{where}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
