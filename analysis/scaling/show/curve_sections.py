"""Iso-FLOP curves, how to spend compute, and what looping costs: words, tables and figures."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from analysis.page.numbers import compact, listed, scientific
from analysis.page.section import Block, Folded, Items, PageFigure, Section, Text
from analysis.page.table import Column, Table
from analysis.scaling.allocation import Allocation, EquivalentSize, Optima
from analysis.scaling.isoflop import Exponents, IsoFlopCurve, PowerLaw
from analysis.scaling.show import curve_figures as figures
from analysis.tables.estimate import Estimate


def isoflop(curves: Sequence[IsoFlopCurve], in_terminal: bool = False) -> Section:
    """The curves by r, and every vertex with the reason for those that are missing."""
    refused = [curve for curve in curves if curve.refused]
    text = (
        f"{len(curves) - len(refused)} of {len(curves)} curves have a usable vertex. A vertex "
        "outside the sizes that were trained, or a curve without a minimum, is not used anywhere."
    )
    panels = PageFigure(
        "isoflop_panels",
        partial(figures.isoflop_panels, curves),
        "The same curves, one panel for each r, on common axes.",
        "Loss against unique parameters, a panel for each r, a parabola for each budget with a "
        "star at its minimum.",
    )
    vertices = Folded("Every vertex", [vertex_table(curves)], in_terminal)
    reasons = [f"{scientific(c.budget)} FLOPs, r = {c.r:g}: {c.refused}" for c in refused]
    content: list[Block] = [text, *([Items(reasons)] if reasons else []), panels, vertices]
    return Section("Iso-FLOP curves", content, anchor="isoflop")


def isoflop_figure(curves: Sequence[IsoFlopCurve]) -> PageFigure:
    """All curves in one: the main figure of a study."""
    budgets = sorted({curve.budget for curve in curves})
    return PageFigure(
        "isoflop",
        partial(figures.isoflop_curves, curves),
        "Loss against model size at equal training compute. Every point is a run, every curve a "
        "parabola through the runs of one budget and one r; its star is the best size. Looped "
        "models have fewer unique parameters, so their curves lie further left. Stars of one "
        "colour compare at equal compute: lower is better.",
        f"Loss against unique parameters: {len(curves)} curves of "
        f"{listed([scientific(b) for b in budgets], 6)} training FLOPs and "
        f"r = {listed([f'{r:g}' for r in sorted({c.r for c in curves})], 6)}, with a star at the "
        "minimum of each.",
    )


def vertex_table(curves: Sequence[IsoFlopCurve]) -> Table:
    """The best size of each budget and r by its own runs."""
    return Table(
        "vertices",
        "N counts unique non-embedding parameters; ± is one standard error.",
        (
            Column("budget", "FLOPs", scientific),
            Column("r", "r", "g"),
            Column("runs", "runs", "d"),
            Column("n_opt", "N*", compact),
            Column("log_n_opt_se", "± of N*", ".1%"),
            Column("tokens_opt", "D*", compact),
            Column("ratio", "D*/N*", ".1f"),
            Column("loss_opt", "L* (nats)", ".4f"),
        ),
        [
            {**vars(c), "runs": len(c.loss), "ratio": c.tokens_opt / c.n_opt}
            for c in curves
            if c.refused is None
        ],
    )


def allocation(
    result: Allocation | None,
    refused: str | None,
    curves: Sequence[IsoFlopCurve],
    growth: Sequence[Exponents],
) -> Section | None:
    """How N* and D* grow with compute, by both definitions; None where neither has any."""
    optima = [] if result is None else result.optima
    if result is None and all(curve.refused for curve in curves):
        return None
    content: list[Block] = [
        "Two definitions of the compute-optimal model, never mixed: vertices of the iso-FLOP "
        "parabolas (points) use one cell of runs each; the minimum of the law (lines) uses the "
        "whole fit and the exact FLOPs per token as a function of width. Where they part, at least "
        "one of them is off."
    ]
    if refused:
        content.append(f"No minimum of the law: {refused}.")
    table = exponent_table(result, growth)
    if table.rows:
        content.append(table)
    if reasons := [each.refused for each in growth if each.refused]:
        content.append(Text(f"No exponent: {'; '.join(reasons)}.", "note"))
    beyond = [f"r = {o.r:g}" for o in optima if o.extrapolated.any()]
    if beyond:
        note = f"beyond the widths that were trained for {listed(beyond, 6)}: extrapolated there."
        content.append(Text(f"The optimum of the law lies {note}", "note"))
    of = f"for r = {listed([f'{o.r:g}' for o in optima] or ['every value'], 6)}"
    content += [
        PageFigure(
            "optimum",
            partial(figures.optimum, optima, curves),
            "Best model size and number of training tokens for a budget. N counts unique "
            "non-embedding parameters.",
            f"Two charts against training FLOPs: optimal parameters and optimal tokens, {of}.",
        ),
        PageFigure(
            "tokens_per_parameter",
            partial(figures.tokens_per_parameter, optima, curves),
            "Tokens per unique parameter at the optimum. A looped model has fewer unique "
            "parameters for its compute, so its ratio is higher.",
            f"Tokens per unique parameter at the optimum against training FLOPs, {of}, beside the "
            "rule of 20.",
        ),
    ]
    return Section("Compute-optimal allocation", content, anchor="allocation")


def exponent_table(result: Allocation | None, growth: Sequence[Exponents]) -> Table:
    """Exponents of N* and D* from vertices and from the law."""
    of_law = {} if result is None else {g.r: g for g in result.growth}
    rows = []
    for e in growth:
        if e.n_params is not None and e.tokens is not None:
            a, b = _exponent(e.n_params), _exponent(e.tokens)
            rows.append({"r": e.r, "by": "vertices", "a": a, "b": b, "sum": e.total})
        if e.r in of_law:
            g = of_law[e.r]
            a, b, by = g.n_params, g.tokens, "minimum of the law"
            rows.append({"r": e.r, "by": by, "a": a, "b": b, "sum": g.total})
    return Table(
        "exponents",
        "Exponents with 95 % intervals. a + b is above 1 where FLOPs per token grow more slowly "
        "than N: attention and unembedding are linear in width.",
        (
            Column("r", "r", "g"),
            Column("by", "definition"),
            Column("a", "a in N* ∝ Cᵃ", ".3f"),
            Column("b", "b in D* ∝ Cᵇ", ".3f"),
            Column("sum", "a + b", ".3f"),
        ),
        rows,
    )


def _exponent(fit: PowerLaw) -> Estimate:
    return Estimate(fit.exponent, fit.se, fit.ci95)


def price(
    result: Allocation | None, curves: Sequence[IsoFlopCurve], law: str, in_terminal: bool = False
) -> Section | None:
    """The loss frontier of each r and its distance from r = 1; None without anything to draw."""
    optima = [] if result is None else result.optima
    if result is None and all(curve.refused for curve in curves):
        return None
    content: list[Block] = [
        "The lowest loss that each r reaches with the same training compute, and its distance from "
        "r = 1. A looped model stores fewer parameters; the distance is what that costs.",
        PageFigure(
            "frontier",
            partial(figures.frontier, optima, curves),
            "The lowest loss each r reaches with C training FLOPs.",
            "Compute-optimal loss against training FLOPs, a line and points for each r.",
        ),
    ]
    if result is None or not result.gaps:
        if 1 not in {c.r for c in curves}:
            content.append("No run has r = 1, so there is no gap to show.")
    else:
        gap = result.gaps_at_budgets[-1]
        content.append(
            PageFigure(
                "frontier_gap",
                partial(figures.frontier_gap, result.gaps, curves),
                "Distance of each frontier from that of r = 1, with the 95 % band of the resampled "
                "laws. Points: distance between the vertices at that budget.",
                "Distance in loss of each r from r = 1 against training FLOPs, "
                f"{gap.gap[-1]:+.3f} nats for r = {gap.r:g} at the largest budget.",
            )
        )
    if result is not None:
        table = optimum_table(result, curves, law)
        content.append(Folded("At every budget", [table], in_terminal))
    return Section("The price of looping", content, anchor="price")


def optimum_table(result: Allocation, curves: Sequence[IsoFlopCurve], law: str) -> Table:
    """The minimum of the law at every budget, and its distance from r = 1 by both definitions."""
    vertex = {(c.r, c.budget): c.loss_opt for c in curves if c.refused is None}
    gaps = {gap.r: gap for gap in result.gaps_at_budgets}

    def row(o: Optima, i: int) -> dict[str, Any]:
        gap, budget = gaps.get(o.r), float(o.budgets[i])
        law_gap = None
        if gap is not None:
            ends = None if gap.ci95 is None else (float(gap.ci95[0][i]), float(gap.ci95[1][i]))
            law_gap = Estimate(float(gap.gap[i]), None, ends)
        between = vertex.get((o.r, budget), np.nan) - vertex.get((1.0, budget), np.nan)
        return {
            "budget": budget,
            "r": o.r,
            "width": float(o.d_model[i]),
            "beyond": "beyond" if o.extrapolated[i] else "within",
            "n_params": float(o.n_params[i]),
            "tokens": float(o.tokens[i]),
            "ratio": float(o.tokens[i] / o.n_params[i]),
            "loss": float(o.loss[i]),
            "gap": law_gap,
            "vertex_gap": None if o.r == 1 else between,
        }

    return Table(
        "optimum",
        f"Minimum of the {law} law, and its distance from r = 1 in nats by the law with its 95 % "
        "interval, and between vertices.",
        (
            Column("budget", "FLOPs", scientific),
            Column("r", "r", "g"),
            Column("width", "width", ".0f"),
            Column("beyond", "trained widths"),
            Column("n_params", "N*", compact),
            Column("tokens", "D*", compact),
            Column("ratio", "D*/N*", ".1f"),
            Column("loss", "L* (nats)", ".4f"),
            Column("gap", "L* − L*(r = 1)", ".3f"),
            Column("vertex_gap", "by vertices", ".3f"),
        ),
        [row(o, i) for o in result.at_budgets for i in range(len(o.budgets))],
    )


def sizes_table(
    r: Iterable[float], phi: Estimate | None, sizes: Sequence[EquivalentSize], by_law: bool = True
) -> Table:
    """What a looped model counts as: in blocks, and where sizes are known in parameters.

    ``by_law``: whether the parameters it performs like are shown, which are by the study's law.
    """
    by_r, sized = {size.r: size for size in sizes}, bool(sizes) and by_law

    def row(r: float) -> dict[str, Any]:
        size, worth = by_r.get(r), None
        if phi is not None:
            ends = None if phi.ci95 is None else (r ** phi.ci95[0], r ** phi.ci95[1])
            worth = Estimate(r**phi.value, None, ends)
        return {
            "r": r,
            "worth": worth,
            "unique": size and size.unique,
            "effective": size and size.effective,
        }

    return Table(
        "sizes",
        "Sizes relative to the r = 1 model of the same width; in brackets, 95 % intervals.",
        (
            Column("r", "r", "g"),
            *([Column("worth", "the looped block counts as", ".2f")] if phi is not None else []),
            *([Column("unique", "unique parameters", ".2f")] if sizes else []),
            *([Column("effective", "performs like a model with", ".2f")] if sized else []),
        ),
        [row(float(each)) for each in sorted(set(r)) if each != 1],
    )
