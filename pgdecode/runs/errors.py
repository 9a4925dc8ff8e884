"""Errors of runs."""


class RunError(ValueError):
    """A run that is not possible: its input does not follow the run before, or another run continues that run."""


class RunFault(ValueError):
    """A manifest or state that is damaged, incomplete or of another format. The text begins with its path."""
