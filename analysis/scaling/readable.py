"""Warnings for a reader: the names of parts and parameters that JSON uses, in words."""

import re

#: Beginning of a warning, a pattern → what it is about.
PARTS = (
    (r"per_architecture r = ([\d.e+]+)", r"the law fitted to r = \1 alone"),
    (r"restricted phi=([\d.]+)", r"the law with φ held at \1"),
    (r"restricted", "the law with φ held at 0 and at 1"),
    (r"halves (low|high)", r"the law fitted to the \1 half of the budgets"),
    (r"halves", "φ on halves of the budgets"),
    (r"injection_sensitivity (\w+)", r"φ with the injection matrix counted \1"),
    (r"injection_sensitivity", "φ by where the injection matrix is counted"),
    (r"leave_one_out (r|budget) = ([\d.e+]+)", r"the law without \1 = \2"),
    (r"leave_one_out", "the law without one r or budget"),
    (r"answer left_out_rmse", "the error of the law on cells left out"),
    (r"answer", "what one recurrence is worth"),
    (r"local", "the local law"),
    (r"allocation", "compute-optimal allocation"),
    (r"bootstrap", "the intervals from resampled runs"),
)

SYMBOLS = {"phi": "φ", "alpha": "α", "beta": "β", "gamma": "γ", "psi": "ψ"}


def readable(warning: str) -> str:
    """Such as "The law fitted to r = 2 alone – not available: 4 runs cannot …"; or a part alone."""
    text = warning
    for pattern, words in PARTS:
        text, found = re.subn(rf"^{pattern}(?=: |$)", words, warning)
        if found:
            break
    text = text.replace(": null: ", " – not available: ")
    text = re.sub(r"\blog_(\w)\b", r"\1", text)
    text = re.sub(r"\b(phi|alpha|beta|gamma|psi)\b", lambda name: SYMBOLS[name.group()], text)
    text = text.replace("the edge of the box", "the edge of the range searched")
    return text[0].upper() + text[1:] if text[:1].isascii() else text
