"""The exception that covist raises for bad input."""


class CovistError(ValueError):
    """Bad input, reported in one line that says what was wrong and what to do.

    >>> try:
    ...     covist.create_method("magic")
    ... except covist.CovistError as error:
    ...     print(error)
    unknown method 'magic'; choose one of ...
    """
