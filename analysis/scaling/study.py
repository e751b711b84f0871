"""Everything ``fit`` says about one study: the law, its uncertainty, and where it fails.

The parts are independent fits; one that the runs cannot support is None, with the reason among the
warnings.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import pandas as pd

from analysis.errors import NotIdentifiedError
from analysis.laws.catalogue import law_for
from analysis.laws.counting import INJECTIONS
from analysis.laws.law import Runs
from analysis.scaling.answer import Answer, choose, incomplete
from analysis.scaling.bootstrap import RESAMPLES, Bootstrap, Unit, bootstrap_fit
from analysis.scaling.fit import FitResult, fit
from analysis.scaling.jackknife import jackknife
from analysis.scaling.local_study import LocalStudy, study_locally
from analysis.scaling.readable import readable
from analysis.scaling.splits import (
    By,
    Errors,
    Half,
    LeftOut,
    errors,
    fit_half,
    largest_budgets,
    leave_out,
    prediction_errors,
    split_by_budget,
)
from analysis.tables.estimate import Estimate
from analysis.tables.planned import Planned, planned_runs
from analysis.tables.progress import Progress
from analysis.tables.runs import RunTable

#: Leaving parts out makes many fits close to each other: fewer starts are enough for these.
LEAVE_OUT_STARTS = 50
#: Below this share of agreeing starts the optimum deserves a second look.
MIN_AGREEMENT = 0.5

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What to fit and how hard to try."""

    law: str = "joint"  # a name of laws.catalogue
    phi: float | None = None  # hold φ here; None fits it
    starts: int | None = None  # of every fit; None for the law's own number
    resamples: int = RESAMPLES  # 0: no bootstrap
    unit: Unit = "cell"
    holdout: int = 0  # predict this many of the largest budgets from the rest
    seed: int = 0


@dataclass(frozen=True)
class Study:
    """The results; ``table`` holds the fitted runs (without those held out)."""

    table: RunTable
    settings: Settings
    fit: FitResult
    restricted: dict[str, FitResult | None] | None
    per_architecture: dict[float, FitResult | None]
    residuals: dict[float, Errors]
    halves: dict[str, Half | None] | None
    injection_sensitivity: dict[str, float | None] | None
    bootstrap: Bootstrap | None
    leave_one_out: dict[By, dict[float, LeftOut | None]] | None
    holdout: LeftOut | None
    local: LocalStudy | None
    answer: Answer | None
    planned: Planned | None  # of the study's folder, where it says so
    warnings: list[str] = field(default_factory=list)

    def resampled(self, name: str) -> Estimate:
        """A parameter of the law with its bootstrap spread, where there is one."""
        value, bootstrap = self.fit.params[name], self.bootstrap
        if bootstrap is None or not self.fit.is_free(name):
            return Estimate(value, None, None)
        return Estimate(value, bootstrap.standard_error(name), bootstrap.interval(name))

    def predictions(self) -> pd.DataFrame:
        """The table with what the law says of each run: n_effective, predicted, residual (nats)."""
        residuals = self.fit.residuals
        return self.table.runs.assign(
            n_effective=Runs.of(self.table.booked).n_effective(self.fit.fitted.phi),
            predicted=self.table.runs["loss"].to_numpy() - residuals,
            residual=residuals,
        )


def fit_study(
    table: RunTable, settings: Settings | None = None, *, show_progress: bool = False
) -> Study:
    """Fit the law and everything that says how far to trust it.

    Raises:
        NotIdentifiedError: the law itself cannot be fitted to these runs.
    """
    return _Study(table, settings or Settings(), show_progress).run()


class _Study:
    """Makes the parts of a study in turn and gathers what to warn of."""

    def __init__(self, table: RunTable, settings: Settings, show_progress: bool) -> None:
        self.settings = settings
        self.held_budgets: tuple[float, ...] = ()
        if settings.holdout:
            self.held_budgets = largest_budgets(table, settings.holdout)
        held = table.runs["budget"].isin(self.held_budgets)
        self.held_out, self.table = table.select(held), table.select(~held)
        self.warnings = list(table.warnings)
        self.refused: dict[str, str] = {}  # parts that are None, and why
        self.planned = planned_runs(table.source)
        if finished := incomplete(self.planned):
            text = f"incomplete: {finished} of this study are finished; the numbers will change"
            self.warnings.insert(0, text)
        self.law = law_for(settings.law, self.table.booked)
        self.starts = settings.starts or self.law.solver.starts
        self.r_values = [float(r) for r in np.unique(self.table.runs["r"])]
        self.budgets = [float(b) for b in np.unique(self.table.runs["budget"])]
        work = len(self.r_values) + 1.0
        if self.law.has_phi:
            n_left_out = len(self.r_values) + len(self.budgets)
            work += 6 + n_left_out * LEAVE_OUT_STARTS / self.starts
        self.progress = (
            Progress(work * self.starts + settings.resamples, "fits") if show_progress else None
        )

    def run(self) -> Study:
        fit, s = self._main(), self.settings
        bootstrap = self._bootstrap(fit)
        local = self._part("local", lambda: study_locally(self.table), 0)
        r_of_run = self.table.runs["r"]
        study = Study(
            table=self.table,
            settings=s,
            fit=fit,
            bootstrap=bootstrap,
            restricted=self._with_phi("restricted", self._restricted),
            per_architecture={r: self._architecture(r) for r in self.r_values},
            residuals={r: errors(fit.residuals[r_of_run == r]) for r in self.r_values},
            halves=self._with_phi("halves", self._halves),
            injection_sensitivity=self._with_phi(
                "injection_sensitivity", lambda: self._injection_sensitivity(fit), free=True
            ),
            leave_one_out=self._with_phi("leave_one_out", self._leave_one_out),
            holdout=LeftOut(self.held_budgets, fit, prediction_errors(fit, self.held_out))
            if s.holdout
            else None,
            local=local,
            answer=self._with_phi("answer", lambda: self._answer(fit, bootstrap, local), free=True),
            planned=self.planned,
            warnings=self.warnings,
        )
        if self.progress:
            self.progress.finish()
        return study

    def _part(self, what: str, make: Callable[[], T], work: float | None = None) -> T | None:
        """One part, so much work; None where the runs do not support it."""
        self._begin(what, work)
        try:
            made = make()
        except NotIdentifiedError as reason:
            self._refuse(what, str(reason))
            return None
        fit = made.fit if isinstance(made, Half) else made
        if isinstance(fit, FitResult):
            self.warnings += fit.warnings(what)
        return made

    def _with_phi(self, what: str, make: Callable[[], T], *, free: bool = False) -> T | None:
        """A part that needs a φ, or one that is fitted; None of a law without."""
        if not self.law.has_phi:
            self._refuse(what, f"the {self.law.title} has no φ")
        elif free and self.settings.phi is not None:
            self._refuse(what, "φ is held fixed")
        else:
            return make()
        return None

    def _refuse(self, what: str, reason: str) -> None:
        self.refused[what] = reason
        self.warnings.append(f"{what}: null: {reason}")

    def _begin(self, what: str, work: float | None = None) -> None:
        if self.progress:
            self.progress.start(readable(what), self.starts if work is None else work)

    def _fit(self, table: RunTable, **options) -> FitResult:
        """The study's law on some runs, as the settings say but for ``options``."""
        s = self.settings
        return fit(
            table, **{"law": s.law, "phi": s.phi, "starts": s.starts, "seed": s.seed} | options
        )

    def _main(self) -> FitResult:
        what = self.law.title
        self._begin(what)
        result = self._fit(self.table)
        self.warnings += result.warnings(what) + result.weaknesses(what)
        if 2 <= result.starts.at_optimum < MIN_AGREEMENT * result.starts.n:
            self.warnings.append(
                f"{what}: only {result.starts.at_optimum} of {result.starts.n} starts reached the "
                "best objective; try more --starts"
            )
        acts_on_r = any(e.acts_on == "r" for e in self.law.exponents.values())
        if not acts_on_r and len(self.r_values) > 1:
            self.warnings.append(
                f"{what} over {len(self.r_values)} values of r: counts each parameter "
                "once whatever r, as φ = 0 does"
            )
        return result

    def _bootstrap(self, fit: FitResult) -> Bootstrap | None:
        s = self.settings
        if s.resamples == 0 or self.law.interval == "jackknife":
            reason = f"the {self.law.title} has its interval from left-out cells"
            self._refuse("bootstrap", reason if s.resamples else "0 resamples were asked for")
            return None
        resample = lambda: bootstrap_fit(
            self.table, fit, unit=s.unit, resamples=s.resamples, seed=s.seed
        )
        result = self._part("bootstrap", resample, s.resamples)
        self.warnings += [] if result is None else result.warnings()
        return result

    def _restricted(self) -> dict[str, FitResult | None]:
        return {
            f"phi={phi:g}": self._part(
                f"restricted phi={phi:g}", partial(self._fit, self.table, phi=phi)
            )
            for phi in (0.0, 1.0)
        }

    def _architecture(self, r: float) -> FitResult | None:
        what = f"per_architecture r = {r:g}"
        runs = self.table.select(self.table.runs["r"] == r)
        result = self._part(what, lambda: self._fit(runs, law="chinchilla", phi=None))
        self.warnings += [] if result is None else result.weaknesses(what)
        return result

    def _halves(self) -> dict[str, Half | None] | None:
        both = self._part("halves", lambda: split_by_budget(self.table), 0)
        return both and {
            name: self._part(f"halves {name}", partial(fit_half, half, self._fit))
            for name, half in zip(("low", "high"), both, strict=True)
        }

    def _injection_sensitivity(self, fit: FitResult) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for choice in INJECTIONS:
            counted: FitResult | None = fit
            if choice != self.table.injection:
                what = f"injection_sensitivity {choice}"
                counted = self._part(what, partial(self._fit, self.table, injection=choice))
            found[choice] = None if counted is None else counted.phi
        return found

    def _leave_one_out(self) -> dict[By, dict[float, LeftOut | None]]:
        starts = min(LEAVE_OUT_STARTS, self.starts)
        fewer = partial(self._fit, starts=starts)

        def without(by: By, value: float) -> LeftOut | None:
            make = lambda: leave_out(self.table, by, (value,), fewer)
            return self._part(f"leave_one_out {by} = {value:g}", make, starts)

        return {
            "r": {r: without("r", r) for r in self.r_values},
            "budget": {budget: without("budget", budget) for budget in self.budgets},
        }

    def _answer(
        self, fit: FitResult, bootstrap: Bootstrap | None, local: LocalStudy | None
    ) -> Answer:
        left_out = self._part(
            "answer left_out_rmse",
            lambda: jackknife(self.table.booked, fit, seed=self.settings.seed).left_out_rmse,
            0,
        )
        ci95 = None if bootstrap is None else bootstrap.interval("phi")
        return choose(fit, ci95, left_out, local, self.refused.get("local"))
