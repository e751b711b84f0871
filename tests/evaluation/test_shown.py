"""What a terminal shows of a suite; of loss and depth: tests/test_evaluate.py."""

import io

from rich.console import Console

from looped_jax.evaluation import shown


def estimate(value, low=None, high=None):
    return {"value": value, "standard_error": None, "ci95": [low, high]}


def printed(parts):
    console = Console(file=io.StringIO(), width=80)
    for part in parts:
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


TEXT = {"tokens": 2048, "bootstrap": {"unit": "document", "units": 40}}


def test_convergence():
    settled = [
        {"epsilon": 0.1, "tokens": 100, "unsettled": 3, "median": estimate(4, 3, 5)},
        {"epsilon": 1e-5, "tokens": 100, "unsettled": 60, "median": estimate(9, 9, 9)},
    ]
    lines = printed(shown.convergence(TEXT | {"recurrences": 8, "settled": settled}))
    assert lines[0].endswith("stays below ε, 8 loops, 2,048 tokens, 40 documents")
    assert lines[2].split() == ["0.1", "4", "3", "to", "5", "3.0%"]
    assert lines[3].split() == ["1e-05", "over", "8", "9", "to", "9", "60.0%"]


def test_exits():
    """Of a policy that does not reach the loss there is no cost; no cell is cut at 80 columns."""
    reached = {"loops_over_uniform": estimate(0.84, 0.78, 0.961),
               "flops_over_uniform": estimate(1.19, 1.12, 1.27)}  # fmt: skip
    never = dict.fromkeys(reached, estimate(None))
    rows = [
        {"policy": "kl", "carry": "freeze_recompute"} | reached,
        {"policy": "relative_change", "carry": "full_depth"} | never,
    ]
    lines = printed(shown.exits(TEXT | {"at_equal_quality": rows}))
    assert "loops and FLOPs over those of uniform depth at equal loss" in lines[0]
    costs = ["0.84", "0.78", "to", "0.96", "1.19", "1.12", "to", "1.27"]
    assert lines[2].split() == ["kl", "freeze_recompute", *costs]
    assert lines[3].split() == ["relative_change", "full_depth", "–", "–", "–", "–"]


def test_readout():
    lines = printed(
        shown.readout(
            TEXT
            | {
                "trained_loops": 1,
                "norm": {"mean": [estimate(1.0), estimate(50.25, 20.0, 130.0)]},
                "radial_fraction": {"immediate": {"mean": [estimate(1.4e-8)]}},
                "loss": [estimate(3.5)],
                "clamp": {"rescaled": {"difference": [estimate(0.0)]}},
            }
        )
    )
    assert "trained at 1 loops" in lines[0]
    assert lines[2].split() == ["1", "50.25", "20", "to", "130", "1.4e-08", "3.5000", "+0.0000"]
