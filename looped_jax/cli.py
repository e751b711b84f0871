"""What every entry point does around its `main`: parse flags, and turn a user's error into a line.

    if __name__ == "__main__":
        cli.run(main)

Exit status: 0 when `main` returned, 2 with one line `error: …` for a wrong call or unusable
input, 1 with one line for a full disk, 130 when interrupted by Ctrl-C, 141 when nobody reads the
output any more, 1 with a traceback for anything unexpected.
"""

import difflib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import absl
import ml_collections
from absl import app, flags, logging
from ml_collections import ConfigDict

from looped_jax.errors import UserError
from looped_jax.files import DISK_IS_FULL

FAILED_STATUS = 1
USER_ERROR_STATUS = 2
INTERRUPTED_STATUS = 130
CLOSED_STATUS = 141  # as shells show SIGPIPE


def run(
    main: Callable[[list[str]], int | None],
    argv: Sequence[str] | None = None,
    *,
    takes_arguments: bool = False,
) -> NoReturn:
    """Runs `main([program name, …])` under absl and exits.

    Args:
      main: returns None or an exit status. May raise UserError.
      argv: program name and arguments; `sys.argv` if None.
      takes_arguments: whether `main` looks at arguments that are no flags; else they are refused.
    """

    def guarded(positional: list[str]) -> int | None:
        _replace_what_the_terminal_lacks()
        try:
            if positional[1:] and not takes_arguments:
                raise UserError(f"unexpected argument {positional[1]!r}: options are --name=value")
            status = main(positional)
            sys.stdout.flush()
            return status
        except UserError as error:
            return _fail(error)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED_STATUS
        except BrokenPipeError:
            _drop_output()
            return CLOSED_STATUS
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            where = f" {error.filename}" if error.filename else ""
            print(f"failed: cannot write{where}: {error.strerror}", file=sys.stderr)
            return FAILED_STATUS

    if argv is not None:
        sys.argv = list(argv)  # ml_collections looks for its overrides there and nowhere else
    app.run(guarded, flags_parser=_parse_flags)
    raise AssertionError("absl.app.run returned")


def _replace_what_the_terminal_lacks() -> None:
    """Characters that the encoding of a terminal or pipe does not have become question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """What is left in the buffers goes nowhere, or the interpreter's end would complain of it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _parse_flags(argv: list[str]) -> list[str]:
    """The positional arguments; exits 2 for what cannot be parsed and 0 after --help."""
    try:
        positional = flags.FLAGS(argv)
        _refuse_unloaded_configs()
    except SystemExit:  # absl exits 1 after printing --help
        sys.exit(0)
    except flags.Error as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # A message of many lines is a traceback from within a config file: its ends tell.
        sys.exit(_fail(lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"))
    except UserError as error:
        sys.exit(_fail(error))
    except OSError as error:
        sys.exit(_fail(f"cannot read the config: {str(error).splitlines()[-1].strip()}"))
    except (AttributeError, KeyError) as error:
        if not _raised_by_an_override(error):
            raise
        sys.exit(_fail(_describe_unknown_key(error, argv)))
    if flags.FLAGS["verbosity"].using_default_value:
        # absl's own default, INFO, floods the screen.
        flags.FLAGS["verbosity"].value = logging.WARNING
        flags.FLAGS["verbosity"].using_default_value = False
    return positional


def _refuse_unloaded_configs() -> None:
    """Raises the OSError that ml_collections holds back until a config is first touched."""
    for name in flags.FLAGS:
        getattr(flags.FLAGS[name].value, "items", None)


def _raised_by_an_override(error: BaseException) -> bool:
    """Whether a `--config.key=value` caused the error, rather than code in a config file."""
    libraries = [Path(module.__file__ or "").parent for module in (absl, ml_collections)]
    frame = error.__traceback__
    assert frame is not None
    while frame.tb_next is not None:  # the first frame is _parse_flags itself
        frame = frame.tb_next
        file = Path(frame.tb_frame.f_code.co_filename)
        if not any(library in file.parents for library in libraries):
            return False
    return True


def _describe_unknown_key(error: BaseException, argv: Sequence[str]) -> str:
    """Names the override that no config knows, and the key that comes nearest to it."""
    given: dict[str, str] = {}
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if argument.startswith("-"):
            name, equals, value = argument.lstrip("-").partition("=")
            given[name] = value if equals else following
    for path in given:
        flag, _, keys = path.partition(".")
        if not keys or flag not in given:
            continue
        if unknown := unknown_key(flags.FLAGS[flag].parser.parse(given[flag]), path):
            return unknown
    return f"unknown config key: {error}"


def unknown_key(config: ConfigDict, path: str) -> str | None:
    """What is wrong with the override "config.KEY.KEY" of a config; None if it has that key."""
    branch = config
    for key in path.split(".")[1:]:
        if not isinstance(branch, ConfigDict) or key not in branch:
            siblings = list(branch) if isinstance(branch, ConfigDict) else []
            nearest = difflib.get_close_matches(key, siblings, n=1, cutoff=0.0)
            hint = f": the nearest is {nearest[0]!r}" if nearest else ""
            return f"unknown config key {key!r} in --{path}{hint}"
        branch = branch[key]
    return None


def _fail(error: UserError | str) -> int:
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    return USER_ERROR_STATUS
