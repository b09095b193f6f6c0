"""Errors of a run that its user can mend."""


class RunError(RuntimeError):
    """A run cannot start, go on or be read; the message is one line that says what to do."""
