"""`--config.key=value` on the command line of a study: overrides of all its runs.

ml_collections reads overrides of one config that is known when flags are parsed. A study's configs
are known only after its file was run, so its overrides are kept as they stand and applied then.
"""

from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict, config_flags

from looped_jax import cli
from looped_jax.errors import UserError

PREFIX = "--config."


def declare(argv: Sequence[str]) -> None:
    """Makes absl take every `--config.key=value` in `argv`; call it before flags are parsed."""
    for argument in argv:
        name = argument.removeprefix("--").partition("=")[0]
        if argument.startswith(PREFIX) and name not in flags.FLAGS:
            flags.DEFINE_string(name, None, "An override of every run of the study.")


def given(argv: Sequence[str]) -> list[str]:
    """The overrides in a command line.

    Raises:
      UserError: one without "=".
    """
    found = [argument for argument in argv if argument.startswith(PREFIX)]
    for argument in found:
        if "=" not in argument:
            raise UserError(f"{argument}; allowed: {argument}=VALUE")
    return found


def apply(config: ConfigDict, overrides: Sequence[str]) -> None:
    """Sets the keys of a config, with values of the types that they have.

    Raises:
      UserError: a key that the config does not have, or a value of another type.
    """
    for override in overrides:
        if unknown := cli.unknown_key(config, override.removeprefix("--").partition("=")[0]):
            raise UserError(unknown)
    values = flags.FlagValues()
    argv = ["study", *overrides]
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=argv)
        values(argv)
    except flags.Error as error:
        raise UserError(" ".join(str(error).split())) from None
