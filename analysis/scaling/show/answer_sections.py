"""The part of a report that says what one recurrence is worth, what it costs and how to spend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from analysis.estimate import Estimate
from analysis.page.html import Html, PageFigure, Section, folded, scientific, table
from analysis.page.style import compact
from analysis.scaling.allocation import Allocation, FrontierGap
from analysis.scaling.answer import reading
from analysis.scaling.bootstrap import FEW_BLOCKS
from analysis.scaling.isoflop import Exponents, IsoFlopCurve, PowerLaw
from analysis.scaling.show import curve_figures as figures
from analysis.scaling.show import fit_figures
from analysis.scaling.study import Study

# An interval of φ wider than this leaves most readings of the point open.
WIDE = 0.5


@dataclass(frozen=True)
class Scaling:
    """What the report of a scaling study is made from; without `allocation` the reason why."""

    study: Study
    curves: list[IsoFlopCurve]
    exponents: list[Exponents]
    allocation: Allocation | None
    allocation_refused: str | None


def answer(data: Scaling) -> Section:
    """φ, what it means in words, and the two figures that show it."""
    study = data.study
    phi = phi_estimate(study)
    r_max = float(study.table.runs["r"].max())
    html = f'<p class="answer">φ = {phi.value:.2f} <small>{_interval_in_words(study)}</small></p>'
    html += f'<p class="verdict">{_verdict(study, phi)}</p>'
    html += f"<p>{_doubling(phi)} {_cost(data)}</p>"
    if study.warnings:
        n = len(study.warnings)
        html += f'<p><a href="#warnings">{n} warning{"s" if n > 1 else ""}</a> below.</p>'
    html += _worth_table(data, phi)
    return Section(
        "What one recurrence is worth",
        html,
        [
            PageFigure(
                "phi",
                fit_figures.phi_interval(phi.value, phi.ci95, r_max),
                "The recurrence-equivalence exponent φ and its 95 % interval. A block run r times "
                "counts as r<sup>φ</sup> blocks of its size in "
                "N<sub>eff</sub> = N<sub>once</sub> + r<sup>φ</sup>·N<sub>rec</sub>.",
            ),
            PageFigure(
                "isoflop",
                figures.isoflop_curves(data.curves),
                "Loss against model size at equal training compute. Every point is a run, every "
                "curve a parabola through the runs of one budget and one r; its star is the best "
                "size. Looped models have fewer unique parameters, so their curves lie further "
                "left. Stars of one colour compare at equal compute: lower is better.",
            ),
        ],
        anchor="answer",
    )


def phi_estimate(study: Study) -> Estimate:
    """φ with its bootstrap spread, where there is one."""
    phi = study.fit.params["phi"]
    if study.bootstrap is None or study.settings.phi is not None:
        return Estimate(phi, None, None)
    bootstrap = study.bootstrap
    return Estimate(phi, bootstrap.standard_error("phi"), bootstrap.interval("phi"))


def _interval_in_words(study: Study) -> str:
    phi = phi_estimate(study)
    if study.settings.phi is not None:
        return "held fixed, not fitted"
    if phi.ci95 is None:
        return "no interval: nothing was resampled"
    words = f"95 % interval {_signed(phi.ci95[0])} to {_signed(phi.ci95[1])}"
    bootstrap = study.bootstrap
    if bootstrap is not None and (at_edge := bootstrap.at_bounds.get("phi", 0)):
        box = study.fit.law.exponents["phi"]
        words += (
            f"; {at_edge} of {len(bootstrap.estimates)} resamples end at the edge of the search "
            f"({_signed(box.low)} to {_signed(box.high)})"
        )
    return words


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _verdict(study: Study, phi: Estimate) -> str:
    if study.settings.phi is not None:
        return "These runs were fitted with φ given, so they say nothing about its value here."
    if study.bootstrap is None or phi.ci95 is None:
        return "Without an interval this is a point, not an answer."
    text = reading(*phi.ci95)
    if phi.ci95[1] - phi.ci95[0] > WIDE:
        text += " The interval is the result; the point within it says little."
    if study.bootstrap.n_blocks < FEW_BLOCKS:
        text += (
            f" And with only {study.bootstrap.n_blocks} blocks of runs to redraw, it is likely "
            "too narrow."
        )
    return text


def _doubling(phi: Estimate) -> str:
    text = (
        f"Doubling the recurrences multiplies what the looped block is worth by {2**phi.value:.2f}"
    )
    if phi.ci95 is not None:
        text += f" ({2 ** phi.ci95[0]:.2f} to {2 ** phi.ci95[1]:.2f})"
    return text + "; 1 would be nothing gained, 2 as good as new layers."


def _cost(data: Scaling) -> str:
    if data.allocation is None or not data.allocation.gaps_at_budgets:
        return ""
    gap = data.allocation.gaps_at_budgets[-1]
    value = gap.gap[-1]
    side = "behind" if value > 0 else "ahead of"
    text = (
        f"At {scientific(gap.budgets[-1])} training FLOPs, the largest budget here, the best "
        f"r&nbsp;=&nbsp;{gap.r:g} model is {abs(value):.3f} nats {side} the best "
        "r&nbsp;=&nbsp;1 model"
    )
    if gap.ci95 is not None:
        low, high = sorted(np.sign(value) * end[-1] for end in gap.ci95)
        text += f" ({low:.3f} to {high:.3f})".replace("-", "−")
    return text + " under the fitted law."


def _worth_table(data: Scaling, phi: Estimate) -> str:
    sizes = {} if data.allocation is None else {s.r: s for s in data.allocation.sizes}
    rows = []
    for r in sorted(data.study.table.runs["r"].unique()):
        if r == 1:
            continue
        worth = Estimate(
            r**phi.value,
            None,
            None if phi.ci95 is None else (r ** phi.ci95[0], r ** phi.ci95[1]),
        )
        size = sizes.get(r)
        rows.append(
            [
                f"{r:g}",
                worth.text(2),
                None if size is None else f"{size.unique:.2f}",
                None if size is None else size.effective.text(2),
            ]
        )
    return table(
        ["r", "the looped block counts as", "unique parameters", "performs like a model with"],
        rows,
        caption="Sizes relative to the r&nbsp;=&nbsp;1 model of the same width; in brackets, "
        "95 % intervals.",
    )


def isoflop(data: Scaling) -> Section:
    """The curves by r, and every vertex with the reason for those that are missing."""
    refused = [c for c in data.curves if c.refused]
    n = len(data.curves)
    html = (
        f"<p>{n - len(refused)} of {n} curves have a usable vertex. "
        "A vertex outside the sizes that were trained, or a curve without a minimum, is not "
        "used anywhere.</p>"
    )
    if refused:
        html += table(
            ["budget", "r", "refused because"],
            [[Html(scientific(c.budget)), f"{c.r:g}", c.refused] for c in refused],
        )
    rows = [
        [
            Html(scientific(c.budget)),
            f"{c.r:g}",
            len(c.loss),
            compact(c.n_opt),
            None if np.isnan(c.log_n_opt_se) else f"{c.log_n_opt_se:.1%}",
            compact(c.tokens_opt),
            f"{c.tokens_opt / c.n_opt:.1f}",
            f"{c.loss_opt:.4f}",
        ]
        for c in data.curves
        if c.refused is None
    ]
    header = ["FLOPs", "r", "runs", "N*", "± of N*", "D*", "D*/N*", "L* (nats)"]
    details = folded(
        f"All {len(rows)} vertices",
        table(header, rows, caption="N counts unique non-embedding parameters; ± is one s.e."),
    )
    figure = PageFigure(
        "isoflop_panels",
        figures.isoflop_panels(data.curves),
        "The same curves, one panel for each r, on common axes.",
    )
    return Section("Iso-FLOP curves", html, [figure], details, anchor="isoflop")


def allocation(data: Scaling) -> Section:
    """How N* and D* grow with compute, by both definitions, labelled."""
    optima = [] if data.allocation is None else data.allocation.optima
    html = (
        "<p>Two definitions of the compute-optimal model, never mixed: <b>vertices</b> of the "
        "iso-FLOP parabolas (points) use one cell of runs each; the <b>minimum of the law</b> "
        "(lines) uses the joint fit and the exact FLOPs per token as a function of width. Where "
        "they part, at least one of them is off.</p>"
    )
    if data.allocation_refused:
        html += f"<p>No minimum of the law: {escape(data.allocation_refused)}.</p>"
    rows = _exponent_rows(data)
    html += table(
        ["r", "definition", "a in N* ∝ Cᵃ", "b in D* ∝ Cᵇ", "a + b", "budgets"],
        rows,
        caption="Exponents ± one standard error [95 % interval]. a + b is above 1 where "
        "FLOPs per token grow more slowly than N: attention and unembedding are linear in width.",
    )
    reasons = [e.refused for e in data.exponents if e.refused]
    if reasons:
        html += f'<p class="note">Refused: {escape(". ".join(reasons))}.</p>'
    beyond = [f"r = {o.r:g}" for o in optima if o.extrapolated.any()]
    if beyond:
        html += (
            f'<p class="note">The optimum of the law leaves the widths that were trained for '
            f"{', '.join(beyond)}: extrapolated there.</p>"
        )
    return Section(
        "Compute-optimal allocation",
        html,
        [
            PageFigure(
                "optimum",
                figures.optimum(optima, data.curves),
                "Best model size and number of training tokens for a budget. N counts unique "
                "non-embedding parameters.",
            ),
            PageFigure(
                "tokens_per_parameter",
                figures.tokens_per_parameter(optima, data.curves),
                "Tokens per unique parameter at the optimum. A looped model has fewer unique "
                "parameters for its compute, so its ratio is higher.",
            ),
        ],
        anchor="allocation",
    )


def _exponent_rows(data: Scaling) -> list[list[object]]:
    growth = {} if data.allocation is None else {g.r: g for g in data.allocation.growth}
    n_budgets = data.study.table.runs["budget"].nunique()
    rows: list[list[object]] = []
    for e in data.exponents:
        if e.n_params is None or e.tokens is None:
            rows.append([f"{e.r:g}", "vertices", Html("refused"), Html("refused"), None, None])
        else:
            rows.append(
                [
                    f"{e.r:g}",
                    "vertices",
                    _power_law(e.n_params),
                    _power_law(e.tokens),
                    f"{e.total:.3f}",
                    e.n_params.n,
                ]
            )
        if e.r in growth:
            g = growth[e.r]
            a, b = _with_error(g.n_params), _with_error(g.tokens)
            rows.append([f"{e.r:g}", "minimum of the law", a, b, f"{g.total:.3f}", n_budgets])
    return rows


def _power_law(fit: PowerLaw) -> str:
    return _with_error(Estimate(fit.exponent, fit.se, fit.ci95))


def _with_error(e: Estimate) -> str:
    if e.se is None or e.ci95 is None:
        return f"{e.value:.3f}"
    return f"{e.value:.3f} ± {e.se:.3f} [{e.ci95[0]:.2f}, {e.ci95[1]:.2f}]"


def price(data: Scaling) -> Section:
    """The loss frontier of each r and its distance from r = 1."""
    optima = [] if data.allocation is None else data.allocation.optima
    shown = [
        PageFigure(
            "frontier",
            figures.frontier(optima, data.curves),
            "The lowest loss each r reaches with C training FLOPs.",
        )
    ]
    html = (
        "<p>The lowest loss that each r reaches with the same training compute, and its distance "
        "from r&nbsp;=&nbsp;1. A looped model stores fewer parameters; the distance is what that "
        "costs.</p>"
    )
    details = ""
    if data.allocation is not None and data.allocation.gaps:
        shown.append(
            PageFigure(
                "frontier_gap",
                figures.frontier_gap(data.allocation.gaps, data.curves),
                "Distance of each frontier from that of r = 1, with the 95 % band of the resampled "
                "laws. Points: distance between the vertices at that budget.",
            )
        )
        details = _gap_table(data.allocation.gaps_at_budgets, data.curves)
    elif 1 not in {c.r for c in data.curves}:
        html += "<p>No run has r = 1, so there is no gap to show.</p>"
    return Section("The price of looping", html, shown, details, anchor="price")


def _gap_table(gaps: Sequence[FrontierGap], curves: Sequence[IsoFlopCurve]) -> str:
    vertex = {(c.r, c.budget): c.loss_opt for c in curves if c.refused is None}
    header = ["FLOPs"]
    rows: list[list[object]] = [[Html(scientific(budget))] for budget in gaps[0].budgets]
    for gap in gaps:
        header += [f"r = {gap.r:g}: law [95 %]", "vertices"]
        for i, budget in enumerate(gap.budgets):
            ends = None if gap.ci95 is None else (float(gap.ci95[0][i]), float(gap.ci95[1][i]))
            both = (gap.r, budget) in vertex and (1.0, budget) in vertex
            between = vertex[gap.r, budget] - vertex[1.0, budget] if both else None
            rows[i] += [
                Estimate(float(gap.gap[i]), None, ends).text(3),
                None if between is None else f"{between:.3f}",
            ]
    return table(header, rows, caption="Compute-optimal loss minus that of r&nbsp;=&nbsp;1, nats.")
