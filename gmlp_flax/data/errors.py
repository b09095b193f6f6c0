"""The one error of this package that is the user's to mend."""


class DataError(ValueError):
    """A user's data is missing or wrong.

    The message is one line: what was given, what was expected, what to do.
    """
