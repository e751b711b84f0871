"""Command-line arguments that the commands about scaling laws share."""

from __future__ import annotations

import argparse

from analysis.scaling.bootstrap import RESAMPLES
from analysis.scaling.fit import STARTS
from analysis.tables.arguments import non_negative, positive


def add_effort_arguments(parser: argparse.ArgumentParser) -> None:
    """``--starts`` and ``--bootstrap``: how hard a fit tries and how often it is resampled."""
    parser.add_argument(
        "--starts", type=positive, default=STARTS, metavar="N", help=f"default: {STARTS}"
    )
    parser.add_argument(
        "--bootstrap",
        type=non_negative,
        default=RESAMPLES,
        metavar="N",
        help=f"resamples, 0 for none (default: {RESAMPLES})",
    )
