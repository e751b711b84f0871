"""The interval that a fitted law's predictions have, by the way that its law asks for."""

from analysis.scaling.bootstrap import bootstrap_fit
from analysis.scaling.fit import FitResult
from analysis.scaling.jackknife import jackknife
from analysis.tables.estimate import Draws
from analysis.tables.runs import RunTable


def spread(
    table: RunTable, fit: FitResult, resamples: int, seed: int
) -> tuple[Draws | None, list[str]]:
    """The law's parameters over redrawn or left-out blocks, and what to know about them.

    None for 0 resamples. Raises NotIdentifiedError where too few blocks can be redrawn.
    """
    if resamples == 0:
        return None, []
    if fit.law.interval == "jackknife":
        return jackknife(table.booked, fit, seed=seed).draws, []
    resampled = bootstrap_fit(table, fit, resamples=resamples, seed=seed)
    return resampled.draws, resampled.warnings()
