"""Exit policies on a frozen model: what they save and what they lose, as measured by ``exits``.

Works on what the suite ``exits`` of looped_jax.evaluate measured: points (policy, carry, threshold)
with mean loops, loss and forward FLOPs per token, the cost of the exit tests included.
"""

from typing import Any

from analysis.tables.measured import Measured

UNIFORM = "uniform"
#: What others see of an exited token, in words.
CARRIES = {
    "carry": "exited tokens show others their last keys and values",
    "full_depth": "exited tokens look to others as if they went on (an oracle: nothing is saved)",
}

Point = dict[str, Any]


def policies(run: Measured) -> list[str]:
    """All of them, uniform depth first."""
    return sorted(run["policies"], key=lambda name: name != UNIFORM)


def carries(run: Measured) -> list[str]:
    return list(dict.fromkeys(point["carry"] for point in run["points"]))


def shown_carry(run: Measured) -> str:
    """The carry that a machine could run, if it was measured."""
    return "carry" if "carry" in carries(run) else carries(run)[0]


def frontier(run: Measured, policy: str, carry: str) -> list[Point]:
    """A policy's points, by rising mean loops."""
    found = [p for p in run["points"] if (p["policy"], p["carry"]) == (policy, carry)]
    return sorted(found, key=lambda point: point["mean_loops"].value)


def loops_per_test(run: Measured) -> dict[str, float]:
    """What an exit test of each policy costs, in loops."""
    return {name: flops / run["costs.recurrence"] for name, flops in run["costs.tests"].items()}


def against_uniform(run: Measured, policy: str, carry: str, cost: str) -> dict[str, Any]:
    """Whether a policy beats uniform depth at equal mean ``cost``, "loops" or "flops".

    ``better``, ``worse``: thresholds whose loss is below (above) that of uniform depth beyond its
    interval, of all that could be ``compared``; ``best`` is the point with the lowest difference.
    """
    key = f"against_uniform_at_equal_{cost}"
    found = [point for point in frontier(run, policy, carry) if point[key].ci95 is not None]
    best = min(found, key=lambda point: point[key].value, default=None)
    return {
        "policy": policy,
        "carry": carry,
        "equal": cost,
        "better": sum(point[key].ci95[1] < 0 for point in found),
        "worse": sum(point[key].ci95[0] > 0 for point in found),
        "compared": len(found),
        "best": best
        and {
            "threshold": best["threshold"],
            "mean_loops": best["mean_loops"].value,
            "difference": best[key],
        },
    }
