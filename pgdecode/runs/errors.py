"""Errors of runs."""


class RunError(ValueError):
    """A run that is not possible as requested: its input does not follow the run before, or another run continues that."""


class RunFault(ValueError):
    """A manifest or state that is damaged, incomplete or of another format. The text begins with its path."""
