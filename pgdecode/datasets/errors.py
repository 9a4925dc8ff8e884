"""Errors of runs."""


class RunError(ValueError):
    """A run that is not possible: its input or its options do not follow the last run, or another run is faster."""


class OtherWriter(RunError):
    """Another run or program writes, or has written meanwhile. A later attempt may succeed."""


class RunFault(ValueError):
    """A manifest or state that is damaged, incomplete or of another format. The text begins with its path."""
