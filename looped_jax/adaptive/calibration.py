"""Which threshold costs what: measured on held-out text, kept in the run folder, chosen from.

exits.json in a run folder has, for each signal, thresholds with the mean loops, FLOPs and loss of
scoring with them, and the losses of uniform depths beside. "auto:0.005" is the cheapest of them
whose loss exceeds that of full depth by at most 0.005 nats, at the upper end of its 95 % interval.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from looped_jax.adaptive.rule import Rule
from looped_jax.adaptive.signals import SIGNALS, Probe
from looped_jax.errors import UserError
from looped_jax.files import read_json, write_json

FILE = "exits.json"
FORMAT = 2
AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Measured:
    """One signal at one threshold, on held-out text.

    Attributes:
      mean_loops, flops: of a token; forward FLOPs with the looks.
      loss, excess, excess_high: nats a token, over full depth, and the upper end of the 95 %
        interval of that (paired on the same text).
    """

    signal: str
    threshold: float
    mean_loops: float
    flops: float
    loss: float
    excess: float
    excess_high: float

    def rule(self, recurrences: int) -> Rule:
        """The rule that was measured, with the loop at which every token exits."""
        return Rule(self.signal, self.threshold, most=recurrences)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What was measured of a run, and what its signals were fitted with.

    Attributes:
      recurrences: R, the loop at which every token exited.
      full_depth_loss, full_depth_flops: of R loops for every token.
      uniform_losses: of 1, 2, … R loops for every token, on the same text.
      tokens: how many were scored.
      measured: by signal, rising mean loops.
      fitted: of the signals that need it: {"probe": Probe, "prior": loops by token id (V,)}.
    """

    recurrences: int
    full_depth_loss: float
    full_depth_flops: float
    uniform_losses: list[float]
    tokens: int
    measured: list[Measured]
    fitted: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Writes exits.json into a run folder."""
        fitted = {}
        if "probe" in self.fitted:
            weights, bias = self.fitted["probe"]
            fitted["probe"] = {"weights": np.asarray(weights).tolist(), "bias": float(bias)}
        if "prior" in self.fitted:
            fitted["prior"] = np.asarray(self.fitted["prior"]).round(4).tolist()
        tree = dataclasses.asdict(self) | {"format": FORMAT, "fitted": fitted}
        write_json(folder / FILE, tree)

    @classmethod
    def read(cls, folder: Path) -> "Calibration":
        """The one of a run folder.

        Raises:
          UserError: there is none, or one of another version.
        """
        if not (folder / FILE).exists():
            raise UserError(
                f"{folder} has no {FILE}; make it with "
                f"python -m looped_jax.evaluate --workdir={folder} --suites=exits"
            )
        tree = read_json(folder / FILE)
        if tree.pop("format", None) != FORMAT:
            raise UserError(f"{folder / FILE} is of another version; run --suites=exits again")
        fitted = tree.pop("fitted")
        if "probe" in fitted:
            weights = np.asarray(fitted["probe"]["weights"], np.float32)
            fitted["probe"] = Probe(weights, np.float32(fitted["probe"]["bias"]))
        if "prior" in fitted:
            fitted["prior"] = np.asarray(fitted["prior"], np.float32)
        measured = [Measured(**each) for each in tree.pop("measured")]
        return cls(**tree, measured=measured, fitted=fitted)

    def cheapest(self, most_excess: float) -> Rule:
        """The rule with the fewest FLOPs whose loss is surely within `most_excess` nats.

        Raises:
          UserError: none is, or none costs less than full depth.
        """
        reached = [
            each
            for each in self.measured
            if each.excess_high <= most_excess and each.flops < self.full_depth_flops
        ]
        if not reached:
            least = min((each.excess_high for each in self.measured), default=float("nan"))
            raise UserError(
                f"{AUTO}:{most_excess:g} is reached by no threshold up to loop "
                f"{self.recurrences} at fewer FLOPs than full depth "
                f"({self.full_depth_flops:.3g} a token); allowed: {least:.2g} nats or more, or "
                "no exit"
            )
        best = min(reached, key=lambda each: each.flops)
        return best.rule(self.recurrences)

    def uniform_depth_as_good_as(self, rule: Rule) -> int | None:
        """The least depth for all tokens whose loss is no larger than the rule's.

        None where no depth is, or the rule is not one that was measured.
        """
        of_rule = [each for each in self.measured if each.rule(self.recurrences) == rule]
        if not of_rule:
            return None
        depths = enumerate(self.uniform_losses, start=1)
        return next((depth for depth, loss in depths if loss <= of_rule[0].loss), None)


def rule_of(text: str, folder: Path) -> tuple[Rule, Any]:
    """The rule of a text, and what its signal was fitted with (None for most).

    "auto:0.005" is chosen by the run folder's calibration, and the numbers that a signal was fitted
    with come from there; other rules need none.

    Raises:
      UserError: no such rule, or no calibration where one is needed.
    """
    signal, _, bound = text.partition(":")
    if signal == AUTO:
        try:
            most_excess = float(bound)
        except ValueError:
            raise UserError(f"exit {text!r}; allowed: {AUTO}:NATS, such as {AUTO}:0.005") from None
        rule = _calibration_for(text, folder).cheapest(most_excess)
    else:
        rule = Rule.parse(text)
    if not SIGNALS[rule.signal].is_fitted:
        return rule, None
    fitted = _calibration_for(text, folder).fitted
    if rule.signal not in fitted:
        usable = [name for name in SIGNALS if not SIGNALS[name].is_fitted or name in fitted]
        raise UserError(
            f"exit {text!r}: {folder / FILE} has no fitted {rule.signal}; allowed: "
            f"{', '.join(usable)}"
        )
    return rule, fitted[rule.signal]


def _calibration_for(text: str, folder: Path) -> Calibration:
    try:
        return Calibration.read(folder)
    except UserError as error:
        raise UserError(f"exit {text!r}: {error}") from None
