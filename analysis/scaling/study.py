"""Everything ``fit`` says about one study: the law, its uncertainty, and where it fails.

The parts are independent fits; one that the runs cannot support is None, with the reason among the
warnings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import pandas as pd

from analysis.errors import NotIdentifiedError
from analysis.laws.catalogue import law_for
from analysis.laws.counting import INJECTIONS, Injection
from analysis.laws.law import Runs
from analysis.scaling.answer import Answer, choose
from analysis.scaling.bootstrap import RESAMPLES, Bootstrap, Unit, bootstrap_fit
from analysis.scaling.fit import FitResult, fit
from analysis.scaling.jackknife import jackknife
from analysis.scaling.local_study import LocalStudy, study_locally
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
    def __init__(self, table: RunTable, settings: Settings, show_progress: bool) -> None:
        self.settings = settings
        self.held_out: RunTable | None = None
        self.held_budgets: tuple[float, ...] = ()
        if settings.holdout:
            self.held_budgets = largest_budgets(table, settings.holdout)
            held = table.runs["budget"].isin(self.held_budgets)
            self.held_out, table = table.select(held), table.select(~held)
        self.table = table
        self.warnings = list(table.warnings)
        self.planned = planned_runs(table.source)
        if self.planned and self.planned["finished"] < self.planned["runs"]:
            self.warnings.insert(
                0,
                f"incomplete: {self.planned['finished']} of {self.planned['runs']} runs of this "
                "study are finished; the numbers will change",
            )
        self.law = law_for(settings.law, table.booked)
        self.starts = settings.starts or self.law.solver.starts
        self.r_values = [float(r) for r in np.unique(table.runs["r"])]
        self.budgets = [float(b) for b in np.unique(table.runs["budget"])]
        work = len(self.r_values) + 1.0
        if self.law.has_phi:
            n_left_out = len(self.r_values) + len(self.budgets)
            work += 6 + n_left_out * LEAVE_OUT_STARTS / self.starts
        self.progress = (
            Progress(work * self.starts + settings.resamples, "fits") if show_progress else None
        )

    def fit(self, table: RunTable, **options) -> FitResult:
        """The study's law on some runs, as the settings say but for ``options``."""
        s = self.settings
        return fit(table, s.law, **{"phi": s.phi, "starts": s.starts, "seed": s.seed} | options)

    def run(self) -> Study:
        fit = self._main()
        bootstrap = self._bootstrap(fit)
        local, reason = self._local()
        study = Study(
            table=self.table,
            settings=self.settings,
            fit=fit,
            bootstrap=bootstrap,
            restricted=self._restricted(),
            per_architecture=self._per_architecture(),
            residuals={
                r: errors(fit.residuals[(self.table.runs["r"] == r).to_numpy()])
                for r in self.r_values
            },
            halves=self._halves(),
            injection_sensitivity=self._injection_sensitivity(fit),
            leave_one_out=self._leave_one_out(),
            holdout=self._holdout(fit),
            local=local,
            answer=self._answer(fit, bootstrap, local, reason),
            planned=self.planned,
            warnings=self.warnings,
        )
        if self.progress:
            self.progress.finish()
        return study

    def _main(self) -> FitResult:
        self._begin("the law")
        result, what = self.fit(self.table), self.law.title
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
        self._begin("bootstrap", s.resamples)
        if s.resamples == 0 or self.law.interval == "jackknife":
            reason = f"the {self.law.title} has its interval from left-out cells"
            self._null("bootstrap", reason if s.resamples else "0 resamples were asked for")
            return None
        result = self._try(
            "bootstrap",
            lambda: bootstrap_fit(self.table, fit, unit=s.unit, resamples=s.resamples, seed=s.seed),
        )
        if result is not None:
            self.warnings += result.warnings()
        return result

    def _restricted(self) -> dict[str, FitResult | None] | None:
        if not self.law.has_phi:
            self._null("restricted", self._no_phi)
            return None
        return {name: self._fixed(name, phi) for name, phi in (("phi=0", 0.0), ("phi=1", 1.0))}

    def _fixed(self, name: str, phi: float) -> FitResult | None:
        self._begin(name)
        return self._checked(f"restricted {name}", lambda: self.fit(self.table, phi=phi))

    def _per_architecture(self) -> dict[float, FitResult | None]:
        return {r: self._architecture(r) for r in self.r_values}

    def _architecture(self, r: float) -> FitResult | None:
        self._begin(f"r = {r:g} alone")
        s = self.settings
        runs = self.table.select(self.table.runs["r"] == r)
        what = f"per_architecture r = {r:g}"
        result = self._checked(what, lambda: fit(runs, "chinchilla", starts=s.starts, seed=s.seed))
        if result is not None:
            self.warnings += result.weaknesses(what)
        return result

    def _halves(self) -> dict[str, Half | None] | None:
        if not self.law.has_phi:
            self._null("halves", self._no_phi)
            return None
        both = self._try("halves", lambda: split_by_budget(self.table))
        if both is None:
            return None
        return {
            name: self._half(name, half) for name, half in zip(("low", "high"), both, strict=True)
        }

    def _half(self, name: str, half: RunTable) -> Half | None:
        self._begin(f"{name} half of the budgets")
        what = f"halves {name}"
        result = self._try(what, lambda: fit_half(half, self.fit))
        if result is not None:
            self.warnings += result.fit.warnings(what)
        return result

    def _injection_sensitivity(self, fit: FitResult) -> dict[str, float | None] | None:
        if not self.law.has_phi or self.settings.phi is not None:
            reason = "φ is held fixed" if self.law.has_phi else self._no_phi
            self._null("injection_sensitivity", reason)
            return None
        return {
            choice: fit.params["phi"] if choice == self.table.injection else self._phi_under(choice)
            for choice in INJECTIONS
        }

    def _phi_under(self, injection: Injection) -> float | None:
        self._begin(f"injection counted {injection}")
        result = self._checked(
            f"injection_sensitivity {injection}",
            lambda: self.fit(self.table, injection=injection),
        )
        return None if result is None else result.phi

    def _leave_one_out(self) -> dict[By, dict[float, LeftOut | None]] | None:
        if not self.law.has_phi:
            self._null("leave_one_out", self._no_phi)
            return None
        return {
            "r": {r: self._without("r", r) for r in self.r_values},
            "budget": {b: self._without("budget", b) for b in self.budgets},
        }

    def _without(self, by: By, value: float) -> LeftOut | None:
        starts = min(LEAVE_OUT_STARTS, self.starts)
        self._begin(f"without {by} = {value:g}", starts)
        return self._try(
            f"leave_one_out {by} = {value:g}",
            lambda: leave_out(self.table, by, (value,), partial(self.fit, starts=starts)),
        )

    def _local(self) -> tuple[LocalStudy | None, str | None]:
        self._begin("the local law", 0)
        try:
            return study_locally(self.table), None
        except NotIdentifiedError as reason:
            self._null("local", str(reason))
            return None, str(reason)

    def _answer(
        self,
        fit: FitResult,
        bootstrap: Bootstrap | None,
        local: LocalStudy | None,
        reason: str | None,
    ) -> Answer | None:
        if not self.law.has_phi or self.settings.phi is not None:
            self._null("answer", "φ is held fixed" if self.law.has_phi else self._no_phi)
            return None
        self._begin("which law answers", 0)
        try:
            left_out = jackknife(self.table.booked, fit, seed=self.settings.seed).left_out_rmse
        except NotIdentifiedError as lost:
            self._null("answer left_out_rmse", str(lost))
            left_out = None
        ci95 = None if bootstrap is None else bootstrap.interval("phi")
        return choose(fit, ci95, left_out, local, reason)

    def _holdout(self, fit: FitResult) -> LeftOut | None:
        if self.held_out is None:
            return None
        return LeftOut(self.held_budgets, fit, prediction_errors(fit, self.held_out))

    def _checked(self, what: str, make: Callable[[], FitResult]) -> FitResult | None:
        fit = self._try(what, make)
        if fit is not None:
            self.warnings += fit.warnings(what)
        return fit

    def _try(self, what: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except NotIdentifiedError as reason:
            self._null(what, str(reason))
            return None

    def _null(self, what: str, reason: str) -> None:
        self.warnings.append(f"{what}: null: {reason}")

    @property
    def _no_phi(self) -> str:
        return f"the {self.law.title} has no φ"

    def _begin(self, label: str, work: float | None = None) -> None:
        if self.progress:
            self.progress.start(label, self.starts if work is None else work)
