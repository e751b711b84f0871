"""What goes wrong by the caller's hand: one line that says what and where, exit status 2.

Importing this module arms ``python -m analysis``, from before its other imports, against a package
that is not installed. Programs of others that import ``analysis`` are left as they are.
"""

import sys
from types import TracebackType


class AnalysisError(Exception):
    """A wrong call or unusable input. The message is one line: thing, value, what is allowed."""


class InputError(AnalysisError):
    """A table or run folder that cannot be used; the message names file, row and column."""


class NotIdentifiedError(AnalysisError):
    """The data cannot determine what was asked for, whatever the optimiser returns."""


def missing_package(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """One line for a package that is not installed; handles what ends the program."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    of_python_or_us = package in sys.stdlib_module_names or package == "analysis"
    if kind is not ModuleNotFoundError or not package or of_python_or_us:
        sys.__excepthook__(kind, error, trace)
        return
    print(
        f"error: package {package!r} is not installed for {sys.executable}: type "
        ". .venv/bin/activate first (launch/quickstart.sh makes .venv), or "
        "pip install -r requirements.txt",
        file=sys.stderr,
    )
    raise SystemExit(2)


if sys.argv[:1] == ["-m"]:  # which it is while Python looks for the module to run
    sys.excepthook = missing_package
