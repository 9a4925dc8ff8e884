"""Errors of runs."""

from pgdecode.datasets.errors import RunError as RunError
from pgdecode.datasets.errors import RunFault as RunFault
