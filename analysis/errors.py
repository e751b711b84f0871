"""What goes wrong by the caller's hand: one line that says what and where, exit status 2."""


class AnalysisError(Exception):
    """A wrong call or unusable input. The message is one line: thing, value, what is allowed."""


class InputError(AnalysisError):
    """A table or run folder that cannot be used; the message names file, row and column."""


class NotIdentifiedError(AnalysisError):
    """The data cannot determine what was asked for, whatever the optimiser returns."""
