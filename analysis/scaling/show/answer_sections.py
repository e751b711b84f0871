"""What one recurrence is worth, by which law, and what the answer hangs on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from analysis.page.numbers import scientific, signed
from analysis.page.section import Block, Folded, Items, PageFigure, Section, Text
from analysis.page.table import Column, Table
from analysis.scaling.allocation import Allocation
from analysis.scaling.answer import incomplete, limits, reading
from analysis.scaling.bootstrap import FEW_BLOCKS
from analysis.scaling.isoflop import Exponents, IsoFlopCurve
from analysis.scaling.readable import readable
from analysis.scaling.show import fit_figures
from analysis.scaling.show.curve_sections import isoflop_figure, sizes_table
from analysis.scaling.study import Study
from analysis.tables.estimate import Estimate

#: An interval of φ wider than this leaves most readings of the point open.
WIDE = 0.5

WILL_CHANGE = "of this study are finished: what follows will change."


@dataclass(frozen=True)
class Scaling:
    """What the report of a scaling study is made from; without `allocation` the reason why."""

    study: Study
    curves: list[IsoFlopCurve]
    exponents: list[Exponents]
    allocation: Allocation | None
    allocation_refused: str | None


def answer(data: Scaling) -> Section:
    """φ of the law that answers, what it means in words, and the two figures that show it."""
    study = data.study
    phi = phi_estimate(study)
    content: list[Block] = []
    if phi is None:
        content.append(Text(f"{study.fit.law.title.capitalize()}: {study.fit.values}", "answer"))
    else:
        r_max = float(study.table.runs["r"].max())
        sizes = [] if data.allocation is None else data.allocation.sizes
        finished = incomplete(study.planned)
        by = "" if study.answer is None else f", by the {study.answer.law} law"
        content += [
            *([Text(f"{finished} {WILL_CHANGE}", "verdict")] if finished else []),
            Text(f"φ = {signed(phi.value)}: {_interval_in_words(study, phi)}{by}", "answer"),
            Text(_verdict(study, phi), "verdict"),
            f"{_doubling(phi)} {limits(study.table.runs)}",
            *_cost(data),
            PageFigure(
                "phi",
                partial(fit_figures.phi_interval, phi.value, phi.ci95, r_max),
                "The recurrence-equivalence exponent φ and its 95 % interval. A block run r times "
                "counts as r^φ blocks of its size in N_eff = N_once + r^φ·N_rec.",
                f"The exponent φ = {phi.text(2)} on a scale from 0, where repeating adds nothing, "
                "to 1, as good as unshared layers.",
            ),
            sizes_table(study.table.runs["r"], phi, sizes, by_law=not _by_local(study)),
        ]
    if study.warnings:
        n = len(study.warnings)
        content.append(Text(f"{n} warning{'s' if n > 1 else ''} below.", "note", link="warnings"))
    content.append(isoflop_figure(data.curves))
    return Section("What one recurrence is worth", content, anchor="answer")


def which_law(study: Study) -> Section | None:
    """Which law answers and why, and how far choices of counting move φ; None without a φ."""
    if study.answer is None:
        return None
    chosen, local = study.answer, study.local
    phis = {study.fit.law.name: study.resampled("phi")}
    if local is not None:
        phis["local"] = local.estimate
    laws = Table(
        "laws",
        "Both laws predict every (budget, r) cell from the others; the error of that decides, not "
        "φ. Intervals: the jackknife over cells for the local law, resampled cells for the other.",
        (
            Column("law", "law"),
            Column("phi", "φ [95 %]", ".3f"),
            Column("left_out_rmse", "error on cells left out (nats)", ".4f"),
            Column("rmse", "RMSE (nats)", ".4f"),
            Column("answers", "answers"),
        ),
        [
            {
                "law": name,
                "phi": phi,
                "left_out_rmse": chosen.left_out_rmse.get(name),
                "rmse": study.fit.rmse if name == study.fit.law.name else local and local.fit.rmse,
                "answers": "yes" if name == chosen.law else "no",
            }
            for name, phi in phis.items()
        ],
    )
    content: list[Block] = [f"The {chosen.law} law answers: {chosen.why}.", laws]
    if local is not None:
        content += [
            "Choices that no interval knows of move φ too, often by more than it is wide:",
            _systematics(study),
            Folded("φ without each (budget, r) cell", [_cells(study)]),
        ]
    return Section("Which law answers", content, anchor="which-law")


def warnings(lines: Sequence[str]) -> Section | None:
    """What a reader must know before using any number of the report; None where that is nothing."""
    if not lines:
        return None
    items = Items([readable(line) for line in lines], warnings=True)
    return Section("Warnings", [items], anchor="warnings")


def phi_estimate(study: Study) -> Estimate | None:
    """φ of the law that answers, with its interval; that of the study's law where none does."""
    if study.fit.phi is None:
        return None
    if study.answer is None:
        return Estimate(study.fit.phi, None, None)
    return Estimate(study.answer.phi, None, study.answer.ci95)


def _interval_in_words(study: Study, phi: Estimate) -> str:
    if study.settings.phi is not None:
        return "held fixed, not fitted"
    if phi.ci95 is None:
        return "no interval, nothing was resampled"
    words = f"95 % interval {signed(phi.ci95[0])} to {signed(phi.ci95[1])}"
    bootstrap = study.bootstrap
    if _by_local(study) or bootstrap is None or not bootstrap.at_bounds.get("phi"):
        return words
    box = study.fit.law.exponents["phi"]
    return (
        f"{words}; {bootstrap.at_bounds['phi']} of {len(bootstrap.estimates)} resamples end at the "
        f"edge of the search ({signed(box.low)} to {signed(box.high)})"
    )


def _by_local(study: Study) -> bool:
    return study.answer is not None and study.answer.law == "local"


def _verdict(study: Study, phi: Estimate) -> str:
    if study.settings.phi is not None:
        return "These runs were fitted with φ given, so they say nothing about its value here."
    if phi.ci95 is None:
        return "Without an interval this is a point, not an answer."
    text = reading(*phi.ci95)
    if phi.ci95[1] - phi.ci95[0] > WIDE:
        text += " The interval is the result; the point within it says little."
    few = study.bootstrap is not None and study.bootstrap.n_blocks < FEW_BLOCKS
    if study.bootstrap is not None and few and not _by_local(study):
        text += (
            f" And with only {study.bootstrap.n_blocks} blocks of runs to redraw, it is likely "
            "too narrow."
        )
    return text


def _doubling(phi: Estimate) -> str:
    ends = "" if phi.ci95 is None else f" ({2 ** phi.ci95[0]:.2f} to {2 ** phi.ci95[1]:.2f})"
    return (
        f"Doubling the recurrences multiplies what the looped block is worth by {2**phi.value:.2f}"
        f"{ends}; 1 would be nothing gained, 2 as good as new layers."
    )


def _cost(data: Scaling) -> Iterator[str]:
    if data.allocation is None or not data.allocation.gaps_at_budgets:
        return
    gap = data.allocation.gaps_at_budgets[-1]
    value = gap.gap[-1]
    text = (
        f"At {scientific(gap.budgets[-1])} training FLOPs, the largest budget here, the best "
        f"r = {gap.r:g} model is {abs(value):.3f} nats {'behind' if value > 0 else 'ahead of'} the "
        "best r = 1 model"
    )
    if gap.ci95 is not None:
        low, high = sorted(np.sign(value) * end[-1] for end in gap.ci95)
        text += f" ({low:.3f} to {high:.3f})".replace("-", "−")
    yield f"{text} under the {data.study.fit.law.name} law."


def _systematics(study: Study) -> Table:
    """φ of the local law without each r, by what is counted, and with a worth of its own per r."""
    local = study.local
    assert local is not None
    rows: list[tuple[str, Estimate | float | None]] = [
        ("as above", local.estimate),
        *((f"without r = {r:g}", phi) for r, phi in local.without_r.items()),
        *(
            (f"injection matrix {COUNTED[choice]}", phi)
            for choice, phi in local.injection.items()
            if choice != study.table.injection
        ),
        ("embeddings counted in N_once", local.embeddings),
        ("head counted in N_once", local.head),
        *(
            (f"a worth of its own for r = {r:g}", worth)
            for r, worth in (local.worth_per_r or {}).items()
        ),
    ]
    if local.over_r is not None:
        rows.append(("r, not cells, drawn at random", Estimate(local.phi, None, local.over_r)))
    return Table(
        "systematics",
        "φ of the local law under other choices.",
        (Column("choice", "choice"), Column("phi", "φ", ".3f")),
        [{"choice": choice, "phi": phi} for choice, phi in rows if phi is not None],
    )


#: Where the injection matrix is counted, in words.
COUNTED = {
    "once": "counted in N_once",
    "recurrent": "counted in N_rec",
    "excluded": "not counted",
}


def _cells(study: Study) -> Table:
    assert study.local is not None
    cells = study.local.cells
    return Table(
        "without_cell",
        "",
        (
            Column("budget", "FLOPs", scientific),
            Column("r", "r", "g"),
            Column("phi", "φ without", ".3f"),
        ),
        [
            {"budget": budget, "r": r, "phi": phi}
            for (budget, r), phi in zip(cells.labels, cells.params["phi"], strict=True)
        ],
    )
