"""Signs that a table of runs does not mean what its column names say.

Nothing here refuses: each finding is one line that names the rows and what the likely cause is.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from analysis.laws.counting import FloatArray
from analysis.tables.columns import MAX_COUNT

#: Training costs at least 6 FLOPs per executed matrix entry and token; a little slack for rounding.
MIN_FLOPS_RATIO = 0.95
#: C / 6ND falls smoothly as models grow (attention and readout lose weight); it never jumps up.
MAX_FLOPS_JUMP = 1.5
MAX_BUDGET_ERROR = 0.1
#: A best run above this has learned little beyond token frequencies, or is no loss in nats.
HIGH_LOSS_NATS = 7.0
#: Columns, in lower case and letters alone, that must be the same for losses to be comparable.
DATA = {
    "data": ("data", "datadigest", "dataset", "corpus"),
    "sequence lengths": ("sequencelength", "seqlen", "contextlength", "blocksize"),
    "vocabularies": ("vocab", "vocabsize", "vocabulary", "tokenizer"),
}
#: A loss further than this from those of its neighbours is no noise, in robust standard deviations,
#: each at least this many nats.
FAR_OFF, LEAST_NOISE_NATS = 10.0, 0.002
#: How much N / d² may rise towards small widths before embeddings are suspected.
MAX_DENSITY_RISE = 0.15


def data_warnings(frame: pd.DataFrame) -> list[str]:
    """Findings over a table of runs (as measured, injection not booked), most serious first."""
    return [
        *_different_data(frame),
        *_far_off(frame),
        *_flops_accounting(frame),
        *_flops_ratio(frame),
        *_embeddings(frame),
        *_repeated(frame),
        *_losses(frame),
        *_coverage(frame),
    ]


def executed_parameters(frame: pd.DataFrame) -> FloatArray:
    """Matrix entries that one token passes: N_once + r·(N_rec + N_inject), float64."""
    column = {name: frame[name].to_numpy(np.float64) for name in ("n_once", "n_rec", "n_inject")}
    r = frame["r"].to_numpy(np.float64)
    return np.asarray(column["n_once"] + r * (column["n_rec"] + column["n_inject"]))


def flops_ratio(frame: pd.DataFrame) -> FloatArray:
    """C / (6·N·D) with N the executed parameters; a little above 1 for honest training FLOPs."""
    tokens = frame["tokens"].to_numpy(np.float64)
    return np.asarray(
        frame["train_flops"].to_numpy(np.float64) / (6.0 * executed_parameters(frame) * tokens)
    )


def name_runs(frame: pd.DataFrame, mask: NDArray[np.bool_]) -> str:
    """'3 of 40 runs (a, b, …)'."""
    names = frame.loc[mask, "run"]
    shown = ", ".join(str(name) for name in names[:3])
    return f"{len(names)} of {len(frame)} runs ({shown}{', …' if len(names) > 3 else ''})"


def _different_data(frame: pd.DataFrame) -> Iterator[str]:
    for what, names in DATA.items():
        for column in frame.columns:
            if "".join(filter(str.isalpha, column.lower())) not in names:
                continue
            counts = frame[column].value_counts()
            if len(counts) > 1:
                shown = [f"{value!s:.16} in {n}" for value, n in counts.head(3).items()]
                yield (
                    f"the runs have {len(counts)} {what}: {column} is {', '.join(shown)} of "
                    f"{len(frame)}: their losses are not comparable and one law does not fit "
                    f"them; choose with --where on {column}"
                )


def _far_off(frame: pd.DataFrame) -> Iterator[str]:
    """Losses far from a smooth surface over sizes, tokens and r that goes through most of them.

    Quadratic where runs are many, by least absolute deviations, which a few wild losses cannot move
    (a linear program: minimise Σ (u + v) with X b + u − v = loss and u, v ≥ 0).
    """
    n = frame[["n_once", "n_rec", "n_inject"]].sum(axis=1)
    x = [np.log(np.asarray(column, np.float64)) for column in (n, frame["tokens"], frame["r"])]
    x = [(column - column.mean()) / spread for column in x if (spread := column.std()) > 1e-9]
    terms = [np.ones(len(frame)), *x]
    if len(frame) >= 30:
        terms += [a * b for i, a in enumerate(x) for b in x[i:]]
    design, loss = np.stack(terms, axis=1), frame["loss"].to_numpy(np.float64)
    runs, size = design.shape
    if runs < 2 * size + 2:
        return
    eye = sparse.eye_array(runs)
    found = linprog(
        np.r_[np.zeros(size), np.ones(2 * runs)],
        A_eq=sparse.hstack([design, eye, -eye]),
        b_eq=loss,
        bounds=[(None, None)] * size + [(0, None)] * (2 * runs),
    )
    if not found.success:
        return
    residual = loss - design @ found.x[:size]
    noise = max(float(np.median(np.abs(residual))) / 0.6745, LEAST_NOISE_NATS)
    for i in np.flatnonzero(np.abs(residual) > FAR_OFF * noise):
        side = "above" if residual[i] > 0 else "below"
        yield (
            f"{frame['run'].iloc[i]}: its loss, {loss[i]:.4g}, is {abs(residual[i]):.2g} nats "
            f"{side} what runs of its size have ({abs(residual[i]) / noise:.0f} robust standard "
            "deviations): diverged? --where leaves it out"
        )


def _flops_accounting(frame: pd.DataFrame) -> Iterator[str]:
    product = frame["flops_per_token"].to_numpy(np.float64) * frame["tokens"].to_numpy(np.float64)
    factor = frame["train_flops"].to_numpy(np.float64) / product
    wrong = np.abs(factor - 1.0) > 0.01
    if wrong.any():
        middle = np.median(factor[wrong])
        yield (
            f"train_flops is not flops_per_token × tokens in {name_runs(frame, wrong)}: "
            f"the factor is {middle:.3g} (about 1/3: one of the two counts the forward pass only)"
        )
    off = np.abs(frame["train_flops"] / frame["budget"] - 1.0).to_numpy() > MAX_BUDGET_ERROR
    if off.any():
        yield f"train_flops is more than 10 % away from budget in {name_runs(frame, off)}"


def _flops_ratio(frame: pd.DataFrame) -> Iterator[str]:
    ratio = flops_ratio(frame)
    low = ratio < MIN_FLOPS_RATIO
    if low.any():
        yield (
            f"C / 6ND is below 1 (lowest {ratio[low].min():.2f}) in {name_runs(frame, low)}: "
            "forward-only FLOPs (a third), a truncated backward pass, or embeddings counted in N"
        )
    n = executed_parameters(frame)
    for r, rows in frame.groupby("r").indices.items():
        order = rows[np.lexsort((ratio[rows], n[rows]))]
        jump = ratio[order[1:]] / ratio[order[:-1]]
        if len(jump) and jump.max() > MAX_FLOPS_JUMP:
            at = int(jump.argmax())
            small, large = (frame["run"].iloc[order[at + k]] for k in (0, 1))
            yield (
                f"C / 6ND at r = {r:g} jumps by a factor {jump[at]:.2f} from {small} to {large}: "
                "two ways of counting FLOPs are mixed (3: forward pass only against training)"
            )


def _embeddings(frame: pd.DataFrame) -> Iterator[str]:
    """Non-embedding matrices grow as d² at a fixed depth; embeddings add a part that grows as d."""
    if "d_model" not in frame or not np.issubdtype(frame["d_model"].dtype, np.number):
        return
    for r, rows in frame.groupby("r"):
        shapes = rows.drop_duplicates("d_model").sort_values("d_model")
        d = shapes["d_model"].to_numpy(np.float64)
        if len(d) < 3 or not ((d > 0) & (d < MAX_COUNT)).all():
            continue
        density = executed_parameters(shapes) / d**2
        slope, level = np.polyfit(1.0 / d, density, 1)
        explained = 1.0 - np.var(density - level - slope / d) / max(np.var(density), 1e-300)
        if explained > 0.95 and level > 0 and slope / d[0] > MAX_DENSITY_RISE * level:
            yield (
                f"N at r = {r:g} is about {level:.0f}·d² + {slope:.0f}·d: embeddings (a part "
                "linear in the width) seem to be counted in N, which the laws take without them"
            )


def _repeated(frame: pd.DataFrame) -> Iterator[str]:
    cell = ["r", "n_once", "n_rec", "n_inject", "tokens"]
    copies = frame.duplicated([*cell, "loss"], keep=False).to_numpy()
    if copies.any():
        yield f"same (r, N, D) and same loss: {name_runs(frame, copies)}; one run counted twice?"
    repeats = frame.duplicated(cell, keep=False).to_numpy() & ~copies
    if repeats.any():
        yield (
            f"several runs of one (r, N, D): {name_runs(frame, repeats)}; all are fitted with "
            "equal weight (--group=min keeps the lowest loss of each)"
        )


def _losses(frame: pd.DataFrame) -> Iterator[str]:
    best = frame["loss"].min()
    if best > HIGH_LOSS_NATS:
        yield (
            f"the lowest loss is {best:.2f} nats: barely better than guessing; "
            "a perplexity, or runs that did not learn"
        )


def _coverage(frame: pd.DataFrame) -> Iterator[str]:
    budgets = frame["budget"].nunique()
    if budgets < 3 and len(frame) > 1:  # of one run nobody expects a law
        yield f"{budgets} budget(s): fewer than three cannot hold an exponent; α and β are guesses"
