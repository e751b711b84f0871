"""Exit policies: when a token stops looping. Nothing is trained but the probe.

A policy looks at one number of a token after each loop and lets it exit at the first loop at which
that number is at most a threshold; at the last loop every token exits. Policies on a signal of
`adaptive.signals` decide while tokens leave, as scoring and decoding with them do. The others read
the output through a coda that attends, or know the future: they decide on the trajectory of full
depth, and only what follows from their exits is run. A new policy is a row of POLICIES, and a new
number of the output a field of `signals_of`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from looped_jax.adaptive.signals import SIGNALS
from looped_jax.errors import UserError
from looped_jax.evaluation.scored.trajectory import Loops
from looped_jax.model import accounting
from looped_jax.model.config import ModelConfig

# Most runs of equal argmax that the policy `argmax` is tried with.
MOST_RUNS = 6


@dataclasses.dataclass(frozen=True)
class Policy:
    """One way to decide.

    Attributes:
      name, about: what it is called, and what it does in a line.
      signal: the number that it looks at.
      thresholds: how they are chosen: "depths" 1 … R; "epsilons" of the settings; "runs" 1 … 6;
        "calibrated" on other text than is scored, for a range of mean depths; "fixed" 0.
      heads: times that the test multiplies by the head after every loop, once behind the coda.
      knows_future: whether it looks at later loops: a bound and nothing that could be run.
      first_loop: the first loop after which it can let a token go.
      vector_flops: what a test of the output costs beyond coda and head, in multiples of V.
    """

    name: str
    about: str
    signal: str
    thresholds: str
    heads: int = 0
    knows_future: bool = False
    first_loop: int = 1
    vector_flops: int = 0

    @property
    def reads_output(self) -> bool:
        """Whether the test needs coda and head after every loop."""
        return self.heads > 0

    @property
    def is_rule(self) -> bool:
        """Whether it decides by a signal of a token's own, so that scoring and decoding run it."""
        return self.signal in SIGNALS

    def test_flops_per_token(self, model: ModelConfig, length: int) -> float:
        """Forward FLOPs of one test of one token (multiply-adds as 2, exponentials as 1)."""
        if self.knows_future:
            return 0.0
        if self.is_rule:
            return SIGNALS[self.signal].flops(model) * max(1, model.lanes)
        if not self.reads_output:
            return 0.0
        readout = accounting.readout_flops_per_token(model, length)
        further_heads = (self.heads - 1) * 2.0 * model.width * model.vocab_size
        return readout + further_heads + self.vector_flops * model.vocab_size


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("uniform", "A0: every token runs the same number of loops", "loop", "depths"),
        Policy(
            "kl", "A1: the output has converged, KL(p_i ‖ p_{i−1}) ≤ ε", "kl", "epsilons",
            heads=2, first_loop=2, vector_flops=8,
        ),
        Policy(
            "probe", "A2: a linear probe on the state says that the argmax will not change",
            "probe", "calibrated",
        ),
        Policy(
            "entropy", "the output is certain: its entropy is small", "entropy", "calibrated",
            heads=1, vector_flops=6,
        ),
        Policy(
            "change", "the direction of the state has converged: ‖û_i − û_{i−1}‖ is small",
            "change", "calibrated",
        ),
        Policy(
            "second_order", "the steps of the state have converged (arXiv:2509.23314)",
            "accel", "calibrated", first_loop=2,
        ),
        Policy(
            "argmax", "the most likely token was the same for k loops", "argmax_run", "runs",
            heads=1, first_loop=2, vector_flops=1,
        ),
        Policy(
            "oracle_argmax", "bound on A2: the first loop whose argmax is final", "argmax_changes",
            "fixed", knows_future=True,
        ),
        Policy(
            "oracle_kl", "bound on A1: KL(p_R ‖ p_i) ≤ ε and stays so", "kl_to_last_ahead",
            "epsilons", knows_future=True,
        ),
    )
}  # fmt: skip


def choose(names: Sequence[str], recurrences: int) -> list[Policy]:
    """The policies of these names, or all that have something to decide within R loops.

    Raises:
      UserError: an unknown name, or a policy that first tests after the last loop.
    """
    for name in names:
        if name not in POLICIES:
            raise UserError(f"policy {name!r}; allowed: {', '.join(POLICIES)}")
        if POLICIES[name].first_loop >= recurrences:
            raise UserError(
                f"policy {name!r} first tests after loop {POLICIES[name].first_loop}; allowed "
                f"with {recurrences} recurrences: one that tests before the last loop"
            )
    chosen = [POLICIES[name] for name in names or POLICIES]
    return [policy for policy in chosen if policy.first_loop < recurrences]


def signals_of(loops: Loops, recorded: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every number that a policy may look at, (R, N), small where a token may exit.

    Args:
      recorded: those that are signals of a token's own, by name.
    """
    R, N = loops.kl.shape
    same_RN = np.concatenate([np.zeros((1, N), bool), loops.argmax[1:] == loops.argmax[:-1]])
    run_RN = np.zeros((R, N), np.float32)
    for i in range(1, R):
        run_RN[i] = np.where(same_RN[i], run_RN[i - 1] + 1, 0)
    return recorded | {
        "loop": np.broadcast_to(-np.arange(1, R + 1, dtype=np.float32)[:, None], (R, N)),
        "kl": loops.kl,
        "entropy": loops.entropy,
        "argmax_run": -run_RN,
        "argmax_changes": argmax_changes(loops.argmax).astype(np.float32),
        "kl_to_last_ahead": np.maximum.accumulate(loops.kl_to_last[::-1])[::-1],
    }


def argmax_changes(argmax_RN: np.ndarray) -> np.ndarray:
    """The oracle's label: whether the argmax changes after loop i, bool (R, N)."""
    R = len(argmax_RN)
    changes_RN = np.zeros(argmax_RN.shape, bool)
    for i in range(R - 2, -1, -1):
        changes_RN[i] = changes_RN[i + 1] | (argmax_RN[i + 1] != argmax_RN[i])
    return changes_RN


def exit_loops(signal_RN: np.ndarray, threshold: float) -> np.ndarray:
    """The loop after which each token exits, int (N,), 1 … R."""
    may_RN = signal_RN <= np.float32(threshold)
    may_RN[-1] = True
    return 1 + np.argmax(may_RN, axis=0)


def thresholds_of(
    policy: Policy, epsilons: Sequence[float], calibration_RN: np.ndarray
) -> list[float]:
    """The thresholds that a policy is tried with.

    Args:
      calibration_RN: its signal on the text for calibration. "calibrated" thresholds are those
        whose mean exit loop there comes nearest to 1.5, 1.5·√2, 3, … up to R.
    """
    R = len(calibration_RN)
    if policy.thresholds == "depths":
        return [-float(depth) for depth in range(1, R + 1)]
    if policy.thresholds == "epsilons":
        return sorted(epsilons, reverse=True)
    if policy.thresholds == "runs":
        return [-float(run) for run in range(1, min(MOST_RUNS, R - 1) + 1)]
    if policy.thresholds == "fixed":
        return [0.0]
    return calibrated_thresholds(calibration_RN)


def calibrated_thresholds(calibration_RN: np.ndarray) -> list[float]:
    """Thresholds on a signal whose mean exit loop comes nearest to 1.5, 1.5·√2, 3, … up to R."""
    R = len(calibration_RN)
    finite = calibration_RN[:-1][np.isfinite(calibration_RN[:-1])]
    candidates = np.unique(np.quantile(finite, np.linspace(0, 1, 201)).astype(np.float32))
    depths = np.array([exit_loops(calibration_RN, x).mean() for x in candidates])
    targets = 1.5 * np.sqrt(2) ** np.arange(64)
    nearest = {int(np.argmin(np.abs(depths - target))) for target in targets[targets < R]}
    return [float(candidates[i]) for i in sorted(nearest, reverse=True)]


def shown_threshold(policy: Policy, threshold: float) -> float:
    """The threshold as people speak of it: depths and runs count up, the probe's is a logit."""
    return -threshold if policy.thresholds in ("depths", "runs") else threshold


def costs_per_token(model: ModelConfig, length: int) -> dict[str, float]:
    """Forward FLOPs per token of the parts that exits add up: prelude, one loop, coda and head."""
    readout = accounting.readout_flops_per_token(model, length)
    once = accounting.forward_flops_per_token(model, length, 0)
    one = accounting.forward_flops_per_token(model, length, 1)
    return {"prelude": once - readout, "recurrence": one - once, "readout": readout}
