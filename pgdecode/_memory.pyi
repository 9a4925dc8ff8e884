# Native only: nothing here is for Python.
