"""Rule: when a token stops looping, as text and as what a compiled program needs to know.

    change:0.02                       after the first loop with `change` at most 0.02
    change:0.02,every=2,first=4       looked at after loops 4, 6, 8, …
    change:0.02,most=32               after loop 32 whatever the signal says
    change:0.02,share=0.95            nobody before 95 % of the batch have settled, then everyone

The exit loop of a token is the first loop n ≥ first, divisible by `every`, after which the signal
is at most the threshold; at the last loop every token exits.
"""

import dataclasses
import math
from typing import Any, NamedTuple

from looped_jax.adaptive.signals import SIGNALS
from looped_jax.errors import UserError
from looped_jax.model.config import ModelConfig

# What follows the threshold in a rule's text, and how it is read.
OPTIONS = {"every": int, "first": int, "most": int, "share": float}
INJECTIONS = ("linear", "additive", "diagonal", "passthrough")


class Looks(NamedTuple):
    """What a compiled program is specialised on: which number is looked at, and after which loops.

    The threshold and the last loop are not among it, so one program serves all of them.
    """

    signal: str
    every: int
    first: int


@dataclasses.dataclass(frozen=True)
class Rule:
    """When a token stops looping.

    Attributes:
      signal: a name in `signals.SIGNALS`.
      threshold: exits at or below it; in the signal's unit.
      every: looks only after loops that this divides.
      first: first loop that is looked at; None for the first one at which the signal has a meaning.
      most: loop at which every token exits; None leaves it to who runs the rule.
      share: None, or the share of a batch's tokens that have to have settled before all of them
        exit together (a uniform depth that chooses itself); 0 to 1.

    Raises:
      UserError: a value that is not allowed.
    """

    signal: str
    threshold: float
    every: int = 1
    first: int | None = None
    most: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if self.signal == "kl":
            raise UserError(
                "exit 'kl': read through a coda that attends, the output of a token depends on how "
                f"far its neighbours are; allowed: {', '.join(SIGNALS)} (head_kl is the divergence "
                "without the coda)"
            )
        if self.signal not in SIGNALS:
            raise UserError(f"exit {self.signal!r}; allowed: {', '.join(SIGNALS)}")
        least = SIGNALS[self.signal].first
        if self.first is None:
            object.__setattr__(self, "first", least)
        if math.isnan(self.threshold):
            raise UserError(f"threshold of exit {self.signal!r} is nan; allowed: a number")
        for name, value, allowed in (
            ("every", self.every, 1),
            ("first", self.first, least),
            ("most", self.most, 1),
        ):
            if value is not None and value < allowed:
                raise UserError(
                    f"{name} = {value} of exit {self.signal!r}; allowed: {allowed} or more"
                )
        if self.share is not None and not 0 < self.share <= 1:
            raise UserError(f"share = {self.share:g}; allowed: above 0, at most 1")

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """The rule of a text such as "change:0.02,every=2"; `str` gives the text back.

        Raises:
          UserError: no such rule; the message says what is allowed.
        """
        named, *options = text.split(",")
        signal, colon, threshold = named.partition(":")
        if not colon:
            raise UserError(f"exit {text!r} has no threshold; allowed: SIGNAL:THRESHOLD[,every=N]…")
        return cls(signal, _number(float, threshold, text), **_options(options, text))

    def __str__(self) -> str:
        given = [f"{self.signal}:{self.threshold:.9g}"]
        if self.every != 1:
            given.append(f"every={self.every}")
        if self.first != SIGNALS[self.signal].first:
            given.append(f"first={self.first}")
        if self.most is not None:
            given.append(f"most={self.most}")
        if self.share is not None:
            given.append(f"share={self.share:g}")
        return ",".join(given)

    @property
    def looks(self) -> Looks:
        """What a compiled program has to know of the rule."""
        assert self.first is not None
        return Looks(self.signal, self.every, self.first)


def check_model(model: ModelConfig) -> None:
    """Raises UserError for a model whose tokens cannot exit one by one."""
    if model.injection not in INJECTIONS:
        raise UserError(
            f"exit with injection {model.injection!r}; allowed: {', '.join(INJECTIONS)}"
        )


def _options(options: list[str], text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name not in OPTIONS or name in found:
            allowed = ", ".join(f"{each}=" for each in OPTIONS)
            raise UserError(f"{option!r} in exit {text!r}; allowed, once each: {allowed}")
        found[name] = _number(OPTIONS[name], value, text)
    return found


def _number(kind: type, value: str, text: str):
    try:
        return kind(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise UserError(f"{value!r} in exit {text!r}; allowed: {what}") from None
