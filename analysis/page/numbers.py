"""Numbers as readers see them: rounded, with their interval, a dash where there is none."""

from collections.abc import Callable
from typing import Any

import numpy as np

#: What stands where there is no value.
NONE = "–"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

#: A format specification such as ".3f", applied to ends of intervals too, or a function of a value.
Format = str | Callable[[Any], str]


def shown(value: Any, form: Format) -> str:
    """A value, or one with an interval (``value`` and ``ci95``), in this form."""
    if value is None:
        return NONE
    if hasattr(value, "ci95"):
        text = shown(value.value, form)
        if value.ci95 is None or text == NONE:
            return text
        return f"{text} [{shown(value.ci95[0], form)}, {shown(value.ci95[1], form)}]"
    if isinstance(value, float | np.floating) and np.isnan(value):
        return NONE
    if callable(form):
        return form(value)
    if form[-1:] == "f" and form[:-1].lstrip("+").lstrip(".").isdigit():
        decimals = int(form[:-1].partition(".")[2])
        if 0 < abs(value) < 0.5 * 10.0**-decimals:  # would round to nothing
            return f"{value:.1e}"
    return format(value, form)


def significant(digits: int) -> Callable[[float], str]:
    """So many significant digits, without an exponent between 0.001 and a million."""

    def text(value: float) -> str:
        if value == 0 or not np.isfinite(value):
            return f"{value:g}"
        if not 1e-3 <= abs(value) < 1e6:
            mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
            return f"{mantissa}e{int(exponent)}"
        decimals = max(0, digits - 1 - int(np.floor(np.log10(abs(value)))))
        return f"{value:,.{decimals}f}"

    return text


def compact(value: float) -> str:
    """1500 → 1.5k, 3e8 → 300M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def scientific(value: float) -> str:
    """4.64e17 → 4.64×10¹⁷."""
    mantissa, exponent = f"{value:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    return power if mantissa == "1" else f"{mantissa}×{power}"


def signed(value: float) -> str:
    """Two decimals, with a minus."""
    return f"{value:.2f}".replace("-", "−")


def listed(names: list[str], most: int = 3) -> str:
    """'a, b and c', or 'a, b, c and 5 more'."""
    kept = names if len(names) <= most else [*names[:most], f"{len(names) - most} more"]
    return kept[0] if len(kept) == 1 else f"{', '.join(kept[:-1])} and {kept[-1]}"
