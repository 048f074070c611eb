"""What covist raises when it refuses something."""


class CovistError(ValueError):
    """Bad input, in one line that says what was wrong and what to do."""
