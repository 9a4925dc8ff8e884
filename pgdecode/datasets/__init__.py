"""Data sets: folders that grow. A run reads what has come since the last run, and appends its output.

A data set in a local folder or an object store:

    <output files>
    _pgdecode/0000000001.json ...           the log: a manifest for each run (`manifest`)
    _pgdecode/state-0000000002.json.zst     the state after the last run (`state`)
    _pgdecode/payloads-*.parquet            payloads of undecided transactions (`payload_ranges`)

`run` has the protocol, and `target` makes the target at a path. A run begins by `Target.begin`, which checks its
options and loads the state. It writes its files by `Run.files`, also from tasks in other processes, and commits by
`Run.commit`, which creates the next manifest unless another run has created it. Until then no reader sees its files: in
a local folder they are below `_pgdecode/new`, and in an object store no manifest names them.

This package knows files. `changes.stored_state` converts a `ReplicationState` to the values of a `State` and back.
"""
