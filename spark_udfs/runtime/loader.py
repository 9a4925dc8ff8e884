"""Loads the functions of these packages in Spark's Python workers.

Spark sends this module as code, because a worker may not have these packages. It explains then what to install, in one
line. Everything else is sent as names, so that the versions are compared before any class is imported.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark import cloudpickle


def load(sent: bytes, version: str) -> Any:
    """Load an object that `WorkerFunction` pickled.

    Parameters
    ----------
    sent : bytes
        Its class and attributes, pickled.
    version : str
        The version of pgdecode on the driver.

    Raises
    ------
    RuntimeError
        If this Python does not have pgdecode in this version. The text names the host and the interpreter.
    """
    import pickle
    import socket
    import sys

    worker = f"the Python worker on {socket.gethostname()} ({sys.executable})"
    try:
        import pgdecode
        import spark_udfs  # noqa: F401
    except ImportError as error:
        raise RuntimeError(
            f"{worker} cannot import pgdecode: {error}. Install pgdecode {version} there, or let Spark use another "
            "Python: PYSPARK_PYTHON=/path/to/python before the driver or the Connect server starts"
        ) from None
    if pgdecode.__version__ != version:
        raise RuntimeError(
            f"pgdecode {version} on the driver, but {pgdecode.__version__} in {worker}: "
            "install the same version on all machines"
        )
    kind, attributes = pickle.loads(sent)
    made = object.__new__(kind)
    made.__dict__.update(attributes)
    return made


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
