"""Command-line arguments that the commands about scaling laws share."""

import argparse

from analysis.laws.catalogue import LAWS
from analysis.scaling.bootstrap import RESAMPLES, UNITS
from analysis.tables.arguments import add_seed_argument, non_negative, positive


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    """``--law``, ``--starts``, ``--bootstrap``, ``--seed``: what is fitted, and how thoroughly."""
    parser.add_argument("--law", choices=tuple(LAWS), default="joint", help="default: joint")
    parser.add_argument(
        "--starts",
        type=positive,
        metavar="N",
        help="random starts of every fit (default: the law's own number, 500 for joint)",
    )
    parser.add_argument(
        "--bootstrap",
        type=non_negative,
        default=RESAMPLES,
        metavar="N",
        help=f"resamples, 0 for none (default: {RESAMPLES})",
    )
    add_seed_argument(parser)


def add_unit_argument(parser: argparse.ArgumentParser) -> None:
    """``--unit`` of the bootstrap."""
    parser.add_argument(
        "--unit",
        choices=UNITS,
        default="cell",
        help="block of the bootstrap; cell is (budget, r) (default: cell)",
    )


def positive_number(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and finite")
    return value
