"""A package that is not installed: one line and exit status 2 instead of a traceback.

Importing this module arms every `python -m` of this project, from before its other imports.
Programs of others that import the project are left as they are. `analysis` stands alone and has its
own.
"""

import sys
from types import TracebackType

OURS = ("looped_jax", "launch", "analysis", "configs")


def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Handles what ends the program, as `sys.excepthook`."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    of_python_or_us = package in sys.stdlib_module_names or package in OURS
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
    sys.excepthook = explain
