"""The compiled modules; their sources are in src/, in the same folders."""

from importlib.util import find_spec

if find_spec("pgdecode._native.fault") is None:
    raise ImportError(
        f"the folder {__path__[0]} has sources that are not compiled: "
        "run `make build` in the clone, or start Python in another folder to use an installed pgdecode"
    )
