"""The one exception that entry points turn into a line and an exit status."""


class UserError(Exception):
    """A wrong call or unusable input.

    The message is one line that names the thing, its value and what is allowed.
    Entry points print it without a traceback and exit with status 2.
    """
