"""An inspection as text: tables, and a heat map of digits that a terminal shows in colour."""

import dataclasses
import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from looped_jax.evaluation.shown import plain_table
from looped_jax.inspection.views import Inspection, Passage, PerLoop

# Widths that bars and texts of tokens take.
_BAR, _TOKEN = 12, 16


def show(inspection: Inspection, console: Console) -> None:
    """Prints all views."""
    for title, part in (
        ("Model", _model(inspection)),
        ("Parameters by part", _parameters(inspection)),
        ("Norms of the matrices", _matrices(inspection)),
        (
            f"Loss if loop i were the last, nats ({inspection.tokens:,} tokens; trained at "
            f"{inspection.mean_depth:g} loops on average)",
            _per_loop(inspection.loss, inspection.mean_depth, bars=False),
        ),
        ("That loss minus the one at the mean depth, on the same tokens",
         _per_loop(inspection.gain, inspection.mean_depth, bars=False)),
        ("KL(p_i || p_(i-1)), nats", _per_loop(inspection.kl, inspection.mean_depth)),
        ("‖H_i‖, norm of the state", _per_loop(inspection.norm, inspection.mean_depth)),
        ("Where tokens settle: -log10 of the KL at each loop (0: above 0.1 nats)",
         heat_map(inspection.passage)),
        ("Samples, greedy", _samples(inspection)),
    ):  # fmt: skip
        console.print(Text(f"\n{title}", style="bold"))
        console.print(part)


def heat_map(passage: Passage) -> Text:
    """A line for each token, a digit for each loop: how many zeros its KL has after the point."""
    tokens = [repr(text)[1:-1][-_TOKEN:] for text in passage.texts]
    map_ = Text(f"{'':>{_TOKEN}}  {''.join(str(loop % 10) for loop in passage.loops)}  loop\n")
    for token, kl_R in zip(tokens, passage.kl.T, strict=True):
        map_.append(f"{token:>{_TOKEN}}  ")
        for kl in kl_R:
            digit = settledness(float(kl))
            map_.append(str(digit), style=f"black on {_COLOURS[digit]}")
        map_.append("\n")
    return map_


def settledness(kl: float) -> int:
    """⌊−log10 KL⌋ between 0 and 9."""
    return 9 if kl <= 1e-9 else min(max(math.floor(-math.log10(kl)), 0), 9)


# Light where the output still moves, dark where it has settled.
_COLOURS = (
    "#fde725", "#b5de2b", "#6ece58", "#35b779", "#1f9e89", "#26828e", "#31688e", "#3e4989",
    "#6a4c93", "#8e6bb0",
)  # fmt: skip


def _model(inspection: Inspection) -> Table:
    m = inspection.model
    stack = f"{m.prelude_layers} + {m.core_layers} x {m.recurrences} + {m.coda_layers} layers"
    lines = {
        "run": inspection.name,
        "stack": f"{stack} of width {m.width}, {m.heads} heads of {m.head_dim}, MLP {m.mlp_hidden}",
        "layer": f"{m.layer}, {m.mlp}, {m.positions}, context {m.max_length}",
        "injection": m.injection,
        "initial state": m.initial_state,
        "norms": f"state {m.state_norm}, readout {m.readout_norm}",
        "vocabulary": f"{m.vocab_size:,}, {'tied' if m.tied_head else 'untied'} head",
    } | {name.replace("_", " "): _number(value) for name, value in inspection.training.items()}
    table = Table.grid(padding=(0, 2))
    for name, value in lines.items():
        table.add_row(name, Text(value))
    return table


def _parameters(inspection: Inspection) -> Table:
    n = inspection.parameters
    parts = ("embedding", "head", "prelude", "core", "coda", "injection", "norms")
    table = _table("part", "parameters", "share")
    for part in parts:
        if count := getattr(n, part):
            table.add_row(part, f"{count:,}", f"{count / n.total:.1%}")
    table.add_row("all", f"{n.total:,}", "")
    for name in ("n_once", "n_rec", "n_inject"):
        table.add_row(f"of them {name}", f"{getattr(n, name):,}", "")
    return table


def _matrices(inspection: Inspection) -> Table:
    table = _table("part", "layer", "matrix", "shape", "rms entry", "Frobenius", "spectral")
    for row in inspection.matrices.itertuples():
        table.add_row(
            row.part, "" if row.layer < 0 else str(row.layer), row.matrix,
            f"{row.rows} x {row.columns}", *(f"{x:.3g}" for x in (row.rms, row.frobenius,
                                                                  row.spectral)),
        )  # fmt: skip
    return table


def _per_loop(values: PerLoop, mean_depth: float, bars: bool = True) -> Table:
    """Mean with its interval, quantiles over tokens, and a bar from 0 to the largest mean.

    Fits 80 columns. An arrow marks the mean depth of training.
    """
    table = _table("loop", "mean", "95 % interval", *(f"{q:.0%}" for q in values.quantiles), "")
    table.padding = (0, 1, 0, 0)
    largest = max(mean.value for mean in values.mean)
    for index, (loop, mean) in enumerate(zip(values.loops, values.mean, strict=True)):
        low, high = mean.ci95
        bar = "█" * round(_BAR * max(mean.value, 0.0) / largest) if bars and largest > 0 else ""
        table.add_row(
            f"{loop} ←" if loop == round(mean_depth) else f"{loop}  ",
            f"{mean.value:.4g}",
            f"{low:.3g} to {high:.3g}",
            *(f"{of_loops[index]:.3g}" for of_loops in values.quantiles.values()),
            Text(bar, style="cyan"),
        )
    return table


def _samples(inspection: Inspection) -> Table:
    table = Table(show_lines=True)
    for depth in inspection.samples:
        table.add_column(f"r = {depth}", ratio=1, overflow="fold")
    cells = (
        Text.assemble((inspection.prompt, "dim"), result.text)
        for result in inspection.samples.values()
    )
    table.add_row(*cells)
    return table


def _table(*names: str) -> Table:
    return plain_table(*names, text=("part", "matrix", ""))


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def numbers(inspection: Inspection) -> dict[str, Any]:
    """The inspection as JSON values."""
    per_loop = lambda values: {
        "loops": values.loops,
        "mean": [mean.to_json() for mean in values.mean],
        "quantiles": {str(q): of_loops for q, of_loops in values.quantiles.items()},
    }
    passage = inspection.passage
    return {
        "run": inspection.name,
        "training": inspection.training,
        "parameters": dataclasses.asdict(inspection.parameters),
        "matrices": inspection.matrices.to_dict(orient="records"),
        "mean_depth": inspection.mean_depth,
        "tokens": inspection.tokens,
        "loss": per_loop(inspection.loss),
        "gain": per_loop(inspection.gain),
        "kl": per_loop(inspection.kl),
        "norm": per_loop(inspection.norm),
        "passage": {
            "texts": passage.texts, "loops": passage.loops, "kl": passage.kl.tolist()
        },
        "prompt": inspection.prompt,
        "samples": {
            str(depth): dataclasses.asdict(result) for depth, result in inspection.samples.items()
        },
    }  # fmt: skip
